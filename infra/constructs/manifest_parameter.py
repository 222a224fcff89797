"""The manifest of an application in Parameter Store, by which infrastructure and library meet."""

from __future__ import annotations

from collections.abc import Mapping

from infra import iam, manifest, names
from infra.cdk import Construct, Fn, SsmParameter
from infra.constructs.base import put
from infra.constructs.stream import FanOutStream
from infra.constructs.table import LeaseTable
from infra.settings import Environment


class ManifestParameter(Construct):
    """A parameter that is encrypted with the environment's key. The settings' rules have checked its size.

    Args:
        scope: The parent construct.
        environment: The environment.
        application: Key of the application.
        table: Its lease table.
        streams: Streams it consumes, by key.
        key_arn: Customer key that encrypts it.
    """

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        application: str,
        *,
        table: LeaseTable,
        streams: Mapping[str, FanOutStream],
        key_arn: str,
    ) -> None:
        super().__init__(scope, f"manifest-{application}")
        document = manifest.manifest(
            environment,
            application,
            table_arn=table.arn,
            table_name=table.name,
            streams={
                key: manifest.StreamRef(stream.name, stream.arn, stream.consumers[application])
                for key, stream in streams.items()
            },
        )
        name = names.parameter_name(environment, application)
        parameter = SsmParameter(
            self,
            "parameter",
            name=name,
            description=f"kinesis-efo manifest {name}",
            type="SecureString",
            key_id=key_arn,
            tier=environment.manifest_tier.capitalize(),
            # Not json.dumps: only Terraform knows the values of references, and can quote them.
            value=Fn.jsonencode(document),
        )
        put(parameter, names.place(application, environment.applications[application]))
        self._name, self._key_arn = parameter.name, key_arn
        # The literal ARN: with a reference, the policy would wait for the manifest without need.
        self._arn = names.parameter_arn(environment, application)

    @property
    def parameter_name(self) -> str:
        """Name of the parameter; the manifest's location is `ssm://` and this name."""
        return self._name

    def grant_read(self, policy: iam.Policy) -> None:
        """Let a runtime load the manifest."""
        policy.read_manifest(self._arn, self._key_arn)
