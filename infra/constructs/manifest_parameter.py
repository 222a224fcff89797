"""The manifest of an application in Parameter Store: what infrastructure tells the library, made of references."""

from __future__ import annotations

from collections.abc import Mapping

from infra import iam, manifest, names
from infra.cdk import Construct, Fn, SsmParameter
from infra.constructs.base import put
from infra.constructs.stream import FanOutStream
from infra.constructs.table import LeaseTable
from infra.settings import Environment


class ManifestParameter(Construct):
    """One parameter, encrypted with the environment's key. Its size has been checked with the settings.

    Args:
        scope: Where it belongs.
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
            # Not json.dumps: only Terraform can quote what references turn out to be.
            value=Fn.jsonencode(document),
        )
        put(parameter, names.place(application, environment.applications[application]))
        self._name, self._key_arn = parameter.name, key_arn
        # The literal ARN: a reference would make the policy wait for the manifest for nothing.
        self._arn = names.parameter_arn(environment, application)

    @property
    def parameter_name(self) -> str:
        """Name of the parameter; `ssm://` and this is the location of the manifest."""
        return self._name

    def grant_read(self, policy: iam.Policy) -> None:
        """Let a runtime load the manifest."""
        policy.read_manifest(self._arn, self._key_arn)
