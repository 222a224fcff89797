"""A CDKTF app of a team's own: a stream that it declares, one of another team, and an application that reads both."""

# Before cdktf: it makes the AWS provider start in a second instead of twenty.
from kinesis_efo_infra import EmrServerless, Stream, StreamingApplication

# isort: split

from cdktf import App, TerraformOutput, TerraformStack
from cdktf_cdktf_provider_aws.provider import AwsProvider

app = App()
stack = TerraformStack(app, "streaming-dev")
AwsProvider(stack, "aws", region="eu-west-1")

orders = Stream(stack, "orders", name="orders", retention_hours=48)
payments = Stream.from_arn(stack, "payments", "arn:aws:kinesis:eu-west-1:111122223333:stream/payments")
lake = StreamingApplication(
    stack, "lake", name="lake", streams={"orders": orders, "payments": payments}, trust=EmrServerless()
)
orders.grant_write("orders-producer")  # a role that exists
TerraformOutput(stack, "manifest", value=lake.manifest.location)

app.synth()
