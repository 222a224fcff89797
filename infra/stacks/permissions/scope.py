"""The resources of an environment, as ARN patterns and as conditions on tags."""

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
    """ARNs of an environment's resources; one pattern for all whose names begin with the environment's.

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
        # Streams of other accounts come with their consumers: nothing is declared on them.
        self.adopted = tuple(
            names.stream_arn(key) for key in environment.streams if key not in own and names.is_ours(key)
        )
        # What others own: it has their tags, if any.
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
        # Keys that others declared carry no tags of this environment.
        self.given_keys = tuple(sorted({arn for arn in given if arn.startswith("arn:")}))
        self.job_buckets = tuple(names.bucket_arn(each) for each in names.job_buckets)
        artifacts = [names.bucket_arn(names.artifacts_bucket)] if environment.emr else []
        self.run_objects = (
            *(f"{each}/{prefix}*" for each in artifacts for prefix in (ENVIRONMENTS, PROGRAMS)),
            # A job reaches no other bucket anyway.
            *(each for each in self.manifest_objects if each.partition("/")[0] in self.job_buckets),
        )
        aliases = [path, f"{path}/*"]
        if not environment.streams and not environment.applications:
            # An app of somebody's own: aliases as the constructs give them.
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
        """Keys of manifests that are in S3, as a pattern."""
        return f"{Names(self._environment).path}/*"

    @property
    def attachable(self) -> tuple[str, ...]:
        """Policies that may be attached to the environment's roles."""
        given = {arn for key in self._with_roles() for arn in self._access(key).policies}
        return (*self.policies, *sorted(given))

    @property
    def boundaries(self) -> tuple[str, ...]:
        """Permissions boundaries, one of which each role must have."""
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
        """ARN of a resource that is in no region, as those of IAM."""
        region = self._environment.region
        return f"arn:{partition(region)}:{service}::{self._environment.account_id}:{resource}"


def _covered(patterns: list[str], arns: Iterable[str]) -> tuple[str, ...]:
    """The patterns, and the ARNs that none of them covers."""
    prefixes = tuple(pattern.rstrip("*") for pattern in patterns)
    return (*patterns, *sorted({arn for arn in arns if not arn.startswith(prefixes)}))


def never_others(environment: Environment) -> Statement:
    """Deny whatever has the tags of another environment: names may begin alike, and those of IAM are the same in all regions.

    Streams and keys that the file adopts may be another environment's.
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
    """Condition: a resource has (`aws:ResourceTag`) or gets (`aws:RequestTag`) the environment's tags."""
    return (
        Condition("StringEquals", f"{kind}/environment", (Names(environment).qualified,)),
        Condition("StringEquals", f"{kind}/managed-by", (MANAGED_BY,)),
    )


def tags_new(environment: Environment) -> tuple[Condition, ...]:
    """Condition: something that is being created gets the environment's tags.

    To create with tags, AWS asks for the permission to tag as well, and knows no tags of what is yet to exist. A resource that
    has an owner's tags is not new: who may tag it as the environment's could take it over.
    """
    owners = tuple(Condition("Null", f"aws:ResourceTag/{tag}", ("true",)) for tag in OWNER_TAGS)
    return (*tagged("aws:RequestTag", environment), *owners)


def use_environment_key(environment: Environment, scope: Scope, sid: str, actions: tuple[str, ...]) -> list[Statement]:
    """Use the environment's key for objects in S3: the declared one, which has tags, or the given one."""
    via = iam.through(environment.region, "s3")
    if environment.key == "own":
        return [Statement(sid, actions, scope.keys, conditions=(*via, *tagged("aws:ResourceTag", environment)))]
    return [Statement(sid, actions, (environment.key,), conditions=via)]
