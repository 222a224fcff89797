"""The streams of this repository, and an application that reads them: one stack for each file in environments."""

# Before cdktf: it makes the AWS provider start in a second instead of twenty.
from kinesis_efo_infra import EmrServerless, Stream, StreamingApplication, pin_account
from kinesis_efo_infra.pipeline.environment import Environment, load

# isort: split

from cdktf import App, S3Backend, TerraformOutput, TerraformStack
from cdktf_cdktf_provider_aws.provider import AwsProvider, AwsProviderDefaultTags


class Streaming(TerraformStack):
    """What an environment has."""

    def __init__(self, app: App, environment: Environment) -> None:
        super().__init__(app, environment.environment)
        pin_account(self, environment.account_id, environment.region)
        S3Backend(
            self,
            bucket=environment.state_bucket,
            key=environment.state_key,
            region=environment.state_region or environment.region,
            encrypt=True,
        )
        # Terraform's own lock file in S3 (1.10 and later).
        self.add_override("terraform.backend.s3.use_lockfile", True)
        AwsProvider(
            self,
            "aws",
            region=environment.region,
            allowed_account_ids=[environment.account_id],
            # The pipeline's roles know by these tags what is this environment's.
            default_tags=[AwsProviderDefaultTags(tags=environment.tags)],
        )
        orders = Stream(self, "orders", name=f"{environment.environment}-orders", protected=environment.protected)
        lake = StreamingApplication(
            self,
            "lake",
            name="lake",
            streams={"orders": orders},
            trust=EmrServerless(),
            permissions_boundary=environment.boundary,
            protected=environment.protected,
        )
        TerraformOutput(self, "manifest", value=lake.manifest.location)


app = App()
for each in load():
    Streaming(app, each)
app.synth()
