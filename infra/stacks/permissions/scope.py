"""The resources of an environment, as ARN patterns and tag conditions for IAM statements."""

from __future__ import annotations

from collections.abc import Iterable

from infra.settings.access import RoleAccess
from infra.settings.model import Environment, OwnStream
from infra.settings.names import ENVIRONMENTS, MANAGED_BY, PROGRAMS, Names
from infra.settings.values import OWNER_TAGS
from kinesis_efo_infra import iam
from kinesis_efo_infra.iam import Condition, Statement
from kinesis_efo_infra.pipeline.deployment import hmac_key
from kinesis_efo_infra.regions import partition


class Scope:
    """ARNs of an environment's resources, by type: a pattern for the environment's prefix, and ARNs that this pattern does not match.

    Args:
        environment: The environment.
    """

    def __init__(self, environment: Environment) -> None:
        names = Names(environment)
        self._environment = environment
        prefix, path = names.prefix, names.path
        applications = list(environment.applications)
        own = [key for key, stream in environment.streams.items() if isinstance(stream, OwnStream)]
        self.streams = _covered(
            [self._arn("kinesis", f"stream/{names.qualified}-*")],
            (names.stream_arn(key) for key in own),
        )
        streams = environment.streams.items()
        self.imported = tuple(
            names.stream_arn(key) for key, each in streams if isinstance(each, OwnStream) and each.import_existing
        )
        # Leave out streams of other accounts: their owners register the consumers, so that nothing is declared on them.
        self.adopted = tuple(
            names.stream_arn(key) for key in environment.streams if key not in own and names.is_ours(key)
        )
        # Adopted streams in any account, which do not have this environment's tags.
        self.given_streams = tuple(names.stream_arn(key) for key in environment.streams if key not in own)
        self.consumers = tuple(f"{each}/consumer/*" for each in self.streams + self.adopted)
        self.tables = _covered(
            [self._arn("dynamodb", f"table/{prefix}-*")],
            (names.lease_table_arn(key) for key in applications),
        )
        self.parameters = (self._arn("ssm", f"parameter/{path}/*"),)
        manifests = names.manifest_bucket
        self.manifest_bucket = (names.bucket_arn(manifests),) if manifests else ()
        self.manifest_objects = tuple(f"{each}/{self.manifest_prefix}" for each in self.manifest_bucket)
        self.alarms = (self._arn("cloudwatch", f"alarm:{path}/*"),)
        self.topics = _covered(
            [self._arn("sns", "*")], [environment.alarms.sns_topic] if environment.alarms.sns_topic else []
        )
        self.dashboards = (self._iam_like("cloudwatch", f"dashboard/{prefix}"),)
        self.policies = (self._iam_like("iam", f"policy/{prefix}-*"),)
        self.roles = _covered(
            [self._iam_like("iam", f"role/{prefix}-*")],
            (self._iam_like("iam", f"role/{names.role_name(key)}") for key in self._with_roles()),
        )
        self.profiles = tuple(each.replace(":role/", ":instance-profile/") for each in self.roles)
        self.keys = (self._arn("kms", "key/*"),)
        state_region = environment.state_region or environment.region
        self.state_keys = (self.keys[0].replace(f":{environment.region}:", f":{state_region}:"),)
        given = [environment.key, *(each for stream in environment.streams.values() for each in stream.all_keys)]
        # Keys that are declared elsewhere do not have this environment's tags.
        self.given_keys = tuple(sorted({arn for arn in given if arn.startswith("arn:")}))
        self.job_buckets = tuple(names.bucket_arn(each) for each in names.job_buckets)
        artifacts = [names.bucket_arn(names.artifacts_bucket)] if environment.emr else []
        self.run_objects = (
            *(f"{each}/{prefix}*" for each in artifacts for prefix in (ENVIRONMENTS, PROGRAMS)),
            # Manifests in other buckets need no protection: jobs have no access to these buckets.
            *(each for each in self.manifest_objects if each.partition("/")[0] in self.job_buckets),
        )
        aliases = [path, f"{path}/*"]
        if not environment.streams and not environment.applications:
            # For the stack of a user's own app, add the aliases that the constructs use by default.
            kinds = (
                f"application/{environment.environment}/*",
                f"manifest/{path}/*",
                f"stream/{names.qualified}-*",
                f"table/{prefix}-*",
            )
            aliases += [f"{environment.project}/{each}" for each in kinds]
        self.aliases = tuple(self._arn("kms", f"alias/{each}") for each in aliases)
        bucket = names.bucket_arn(environment.state_bucket)
        self.bucket = (bucket,)
        self.state = (f"{bucket}/{names.state_key}",)
        self.lock = (f"{bucket}/{names.state_key}.tflock",)
        self.record = (f"{bucket}/{names.record_key}",)
        self.hmac_key = (f"{bucket}/{hmac_key(names.state_key)}",)

    @property
    def manifest_prefix(self) -> str:
        """Pattern for the S3 keys of manifests."""
        return f"{Names(self._environment).path}/*"

    @property
    def attachable(self) -> tuple[str, ...]:
        """ARNs of the policies that may be attached to the environment's roles."""
        given = {arn for key in self._with_roles() for arn in self._access(key).policies}
        return (*self.policies, *sorted(given))

    @property
    def boundaries(self) -> tuple[str, ...]:
        """ARNs of the permissions boundaries, one of which each role must have."""
        given = {self._access(key).permissions_boundary for key in self._with_roles()}
        return (Names(self._environment).boundary_arn, *sorted(each for each in given if each))

    def _with_roles(self) -> list[str]:
        applications = self._environment.applications
        return [key for key in applications if isinstance(applications[key].access, RoleAccess)]

    def _access(self, key: str) -> RoleAccess:
        access = self._environment.applications[key].access
        assert isinstance(access, RoleAccess)
        return access

    def _arn(self, service: str, resource: str) -> str:
        return Names(self._environment).arn(service, resource)

    def _iam_like(self, service: str, resource: str) -> str:
        """Return the ARN of a resource without a region, such as those of IAM."""
        region = self._environment.region
        return f"arn:{partition(region)}:{service}::{self._environment.account_id}:{resource}"


def _covered(patterns: list[str], arns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns, followed by the ARNs that none of them matches."""
    prefixes = tuple(pattern.rstrip("*") for pattern in patterns)
    return (*patterns, *sorted({arn for arn in arns if not arn.startswith(prefixes)}))


def never_others(environment: Environment) -> Statement:
    """Deny access to resources with another environment's tags: prefixes may be ambiguous, and IAM names are global.

    Adopted streams and keys in the settings are excepted, because they may belong to another environment.
    """
    scope = Scope(environment)
    given = (*scope.given_streams, *(f"{each}/consumer/*" for each in scope.given_streams), *scope.given_keys)
    return Statement(
        "NeverOthers",
        ("*",),
        () if given else ("*",),
        effect="Deny",
        conditions=(
            Condition("StringEquals", "aws:ResourceTag/managed-by", (MANAGED_BY,)),
            Condition("StringNotEquals", "aws:ResourceTag/environment", (Names(environment).qualified,)),
        ),
        excepted=given,
    )


def tagged(kind: str, environment: Environment) -> tuple[Condition, ...]:
    """Return the condition that a resource has (`aws:ResourceTag`) or gets (`aws:RequestTag`) the environment's tags."""
    return (
        Condition("StringEquals", f"{kind}/environment", (Names(environment).qualified,)),
        Condition("StringEquals", f"{kind}/managed-by", (MANAGED_BY,)),
    )


def tags_new(environment: Environment) -> tuple[Condition, ...]:
    """Return the condition that a new resource gets the environment's tags.

    Creating a resource with tags also requires the permission to tag it. This permission is limited to resources without owner tags:
    otherwise, the apply role could add the environment's tags to another owner's resource, and then change it.
    """
    owners = tuple(Condition("Null", f"aws:ResourceTag/{tag}", ("true",)) for tag in OWNER_TAGS)
    return (*tagged("aws:RequestTag", environment), *owners)


def use_environment_key(environment: Environment, scope: Scope, sid: str, actions: tuple[str, ...]) -> list[Statement]:
    """Allow using the environment's key for S3 objects: the declared key, selected by its tags, or the key named in the settings."""
    via = iam.through(environment.region, "s3")
    if environment.key == "own":
        return [Statement(sid, actions, scope.keys, conditions=(*via, *tagged("aws:ResourceTag", environment)))]
    return [Statement(sid, actions, (environment.key,), conditions=via)]
