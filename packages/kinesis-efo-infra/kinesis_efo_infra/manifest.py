"""The manifest of an application in Parameter Store, by which infrastructure and library meet."""

from __future__ import annotations

from collections.abc import Mapping

from kinesis_efo_infra import checks, document
from kinesis_efo_infra.base import account_of, environment_of, put
from kinesis_efo_infra.cdk import Construct, Fn, SsmParameter
from kinesis_efo_infra.consumer import StreamConsumer
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.grants import Grantee, grant
from kinesis_efo_infra.key import OWN, EncryptionKey, check_key, key_arn
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.stream import Stream
from kinesis_efo_infra.table import LeaseTable


class Manifest(Construct):
    """An encrypted parameter that says what an application reads. A job names it as `ssm://` and its name.

    Args:
        scope: The parent construct.
        id: Its id there.
        application: The application, as metrics and messages call it.
        table: Its lease table.
        streams: What it reads, by the names that options and offsets have: choose them once. A consumer, or a stream that it
            only polls, without one.
        environment: Where it is deployed, such as `prod`, for metrics and messages; default: the name of the stack.
        name: Name of the parameter; default: `/kinesis-efo/<environment>/<application>`.
        encryption_key: `own` (a customer key is declared), `aws-managed`, a `CustomerKey`, or the ARN of one.
        tier: `standard` holds 4 KB, `advanced` 8 KB (and is billed).
        protected: Terraform refuses to destroy its key. The manifest itself can be written again.
        place: Its Terraform name.

    Raises:
        ArgumentError: There are no streams, or an argument is outside of what Parameter Store takes (Systems Manager API
            reference, PutParameter).

    >>> manifest = Manifest(stack, "manifest", application="lake", table=table, streams={"orders": lake})
    >>> manifest.location
    'ssm:///kinesis-efo/streaming/lake'
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        application: str,
        table: LeaseTable,
        streams: Mapping[str, StreamConsumer | Stream],
        environment: str | None = None,
        name: str | None = None,
        encryption_key: EncryptionKey = OWN,
        tier: str = "standard",
        protected: bool = False,
        place: Place | None = None,
    ) -> None:
        owner = f"Manifest {id!r}"
        checks.text(owner, "application", application, checks.KINESIS_NAME, "choose another name")
        environment = environment_of(scope, owner, environment)
        name = name or f"/kinesis-efo/{environment}/{application}"
        checks.text(owner, "name", name, checks.PARAMETER_NAME, "give a full name that begins with a '/'")
        checks.one_of(owner, "tier", tier, ("standard", "advanced"), "standard holds 4 KB, advanced 8 KB")
        check_key(owner, encryption_key)
        if not streams:
            raise ArgumentError(f"{owner}: streams must have at least one; got {streams!r}: it would read nothing")
        super().__init__(scope, id)
        account = account_of(self)
        content = document.manifest(
            application=application,
            environment=environment,
            region=account.region,
            table_name=table.name,
            table_arn=table.arn,
            streams={key: _reference(each) for key, each in streams.items()},
        )
        self._key_arn = key_arn(
            self,
            encryption_key,
            alias=f"kinesis-efo/manifest{name}",
            description=f"kinesis-efo manifest {name}",
            protected=protected,
            place=place,
        )
        parameter = SsmParameter(
            self,
            "parameter",
            name=name,
            description=f"kinesis-efo manifest {name}",
            type="SecureString",
            key_id=self._key_arn,
            tier=tier.capitalize(),
            # Not json.dumps: only Terraform knows the values of references, and can quote them.
            value=Fn.jsonencode(content),
        )
        put(parameter, place)
        self._name = parameter.name
        self._literal_name = name
        # Not the parameter's own: with a reference, the policy would wait for the manifest without need.
        self._arn = account.arn("ssm", f"parameter{name}")

    @property
    def parameter_name(self) -> str:
        """Name of the parameter."""
        return self._name

    @property
    def location(self) -> str:
        """What a job's option `manifest` says."""
        return f"ssm://{self._literal_name}"

    def grant_read(self, grantee: Grantee) -> None:
        """Let a runtime load the manifest."""
        grant(self, "manifest", grantee, lambda to: to.read_manifest(self._arn, self._key_arn))


def _reference(read: StreamConsumer | Stream) -> document.StreamRef:
    if isinstance(read, StreamConsumer):
        return document.StreamRef(read.stream.name, read.stream.arn, read.arn)
    return document.StreamRef(read.name, read.arn, None)
