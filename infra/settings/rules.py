"""Rules that span several entries of an environment file. Rules that span several files are in `between`.

Each rule checks only entries that are valid by themselves, so that one fault does not cause a second, misleading one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date

from infra.errors import Fault
from infra.settings import consumers, existing, literals, locations, pods, schedules, targets
from infra.settings.access import OtherAccount, RoleAccess
from infra.settings.model import RELEASES, AdoptedStream, Application, Environment, Head, Job, OwnStream, Stream
from infra.settings.names import Names, application_name, keys_of, parse_arn
from kinesis_efo_infra import iam
from kinesis_efo_infra.pipeline.deployment import consumers_at_most
from kinesis_efo_infra.pipeline.known_regions import known_regions

_KEY = re.compile(r"[a-z][a-z0-9-]{0,62}")
_PRODUCTION = re.compile(r"(^|-)(prod|production|prd|live)\d*(-|$)")
_PARAMETER_BYTES = {"standard": 4096, "advanced": 8192}  # Systems Manager API reference, PutParameter, Value
POLICY_CHARACTERS = 6144
"""IAM's limit for the size of a managed policy in characters, without white space."""
_ROLE_CHARACTERS = 64
_POLLERS = 5  # a shard supports five GetRecords calls a second, and a query makes one (`pollingInterval`)


@dataclass(slots=True)
class Draft:
    """An environment file that is being checked: its valid entries, the keys of all entries, and the faults found so far.

    The keys of `jobs` are indexes in the file, so that an invalid job does not change the keys of those after it.
    """

    head: Head | None = None
    streams: dict[str, Stream] = field(default_factory=dict)
    applications: dict[str, Application] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    written: dict[str, set[str]] = field(default_factory=lambda: {"streams": set(), "applications": set()})
    faults: list[Fault] = field(default_factory=list)

    def environment(self) -> Environment:
        """Return an environment with the valid entries. Requires a valid `head`."""
        assert self.head is not None
        head = {name: getattr(self.head, name) for name in Head.model_fields}
        return Environment.model_construct(
            **head, streams=self.streams, applications=self.applications, jobs=tuple(self.jobs.values())
        )


def key_faults(section: str, key: object) -> Iterator[Fault]:
    """Yield a fault if the key of an entry is invalid."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        yield Fault(
            section, key, "a key must begin with a-z, go on with a-z, 0-9 or '-', and have at most 63 characters"
        )


def within_environment(draft: Draft) -> list[Fault]:
    """Return the faults between the entries of one file."""
    faults = [
        *_capacity(draft),
        *_references(draft),
        *_consumer_limit(draft),
        *_uniqueness(draft),
        *_moves(draft),
        *targets.within(draft.jobs, draft.applications, draft.written["applications"], draft.head),
        *pods.within(draft.applications),
        *locations.within(draft.applications, draft.jobs, draft.head),
        *schedules.within(draft.applications, draft.jobs),
    ]
    if draft.head is not None:
        faults += [
            *_protection(draft.head),
            *_handed_over(draft, draft.head),
            *_manifests(draft.head),
            *_places(draft, draft.head),
            *consumers.within(draft.environment()),
            *existing.imported(draft.environment(), draft.written["applications"]),
        ]
        if not faults and not draft.faults:
            faults += _sizes(draft.environment())
    return faults


def _capacity(draft: Draft) -> Iterator[Fault]:
    for key, stream in draft.streams.items():
        if isinstance(stream, OwnStream):
            path = f"streams.{key}.shards"
            if stream.mode == "on-demand" and stream.shards is not None:
                rule = "must not be given with mode on-demand, where AWS scales; leave it out or say mode: provisioned"
                yield Fault(path, stream.shards, rule)
            elif stream.mode == "provisioned" and stream.shards is None:
                yield Fault(path, None, "is missing: mode provisioned needs the number of shards")
            if stream.mode == "on-demand" and stream.scaled_elsewhere:
                rule = "must not be given with mode on-demand, where AWS scales; leave it out or say mode: provisioned"
                yield Fault(f"streams.{key}.scaled_elsewhere", True, rule)
            if stream.warm_throughput_mib is not None:
                path = f"streams.{key}.warm_throughput_mib"
                if stream.mode == "provisioned":
                    yield Fault(
                        path, stream.warm_throughput_mib, "must not be given with mode provisioned; give shards"
                    )
                if draft.head is not None and not draft.head.on_demand_advantage:
                    rule = "needs On-demand Advantage; if the account has it, say on_demand_advantage: true"
                    yield Fault(path, stream.warm_throughput_mib, rule)


def _references(draft: Draft) -> Iterator[Fault]:
    known = ", ".join(sorted(draft.written["streams"])) or "none"
    for key, application in draft.applications.items():
        path = f"applications.{key}"
        if not application.streams:
            rule = "must name at least one stream: an application that consumes nothing has no lease table or manifest"
            yield Fault(f"{path}.streams", [], rule)
        for setting, listed in (("streams", application.streams), ("writes", application.writes)):
            for stream_key, count in Counter(listed).items():
                if stream_key not in draft.written["streams"]:
                    yield Fault(
                        f"{path}.{setting}", stream_key, f"names a stream that this file does not have ({known})"
                    )
                if count > 1:
                    yield Fault(f"{path}.{setting}", stream_key, "must name each stream once")
        if isinstance(application.access, OtherAccount):
            yield from _shared_out(draft, key, application)
    yield from existing.given(draft.streams, draft.applications, draft.written["applications"])


def _shared_out(draft: Draft, key: str, application: Application) -> Iterator[Fault]:
    path = f"applications.{key}"
    for stream_key in application.streams:
        stream = draft.streams.get(stream_key)
        if isinstance(stream, OwnStream) and stream.key == "aws-managed":
            rule = "must be own or the ARN of a key: other accounts cannot decrypt with the AWS-managed key"
            yield Fault(f"streams.{stream_key}.key", stream.key, f"{rule} ({path} reads from another account)")
    for setting in ("lease_table", "import_lease_table", "writes", "batch", "output", "checkpoint", "output_key"):
        if value := getattr(application, setting):
            rule = "must not be given with access other-account: the other account declares its own side"
            yield Fault(f"{path}.{setting}", value, rule)


def _consumer_limit(draft: Draft) -> Iterator[Fault]:
    advantage = draft.head is not None and draft.head.on_demand_advantage
    subscribed = [each for each in draft.applications.values() if each.subscribes]
    consumers = Counter(key for application in subscribed for key in set(application.streams))
    for key, stream in draft.streams.items():
        if isinstance(stream, OwnStream):
            consumers[key] += len(stream.other_consumers)
    for key, count in consumers.items():
        read = draft.streams.get(key)
        provisioned = isinstance(read, OwnStream) and read.mode == "provisioned"
        limit = consumers_at_most(advantage=advantage and not provisioned)
        if count > limit and read is not None:
            hint = (
                ""
                if advantage or provisioned
                else f" ({consumers_at_most(advantage=True)} with on_demand_advantage: true)"
            )
            yield Fault(f"streams.{key}", f"{count} consumers", f"a stream has at most {limit} consumers{hint}")


def _uniqueness(draft: Draft) -> Iterator[Fault]:
    used: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, application in draft.applications.items():
        used["name", application_name(key, application)].append(f"applications.{key}")
    if draft.head is not None:
        names = Names(draft.environment())
        for key in draft.streams:
            used["stream", names.stream_arn(key)].append(f"streams.{key}")
        for key, application in draft.applications.items():
            if not isinstance(application.access, OtherAccount):
                used["lease table", names.lease_table_name(key)].append(f"applications.{key}")
            if isinstance(application.access, RoleAccess):
                used["role", names.role_name(key)].append(f"applications.{key}")
    for (what, name), paths in used.items():
        if len(paths) > 1:
            yield Fault(paths[-1], name, f"must have a {what} of its own; {', '.join(paths[:-1])} has the same")


def _handed_over(draft: Draft, head: Head) -> Iterator[Fault]:
    """Yield faults of `handed_over` and `retain`: streams that are still declared, named twice, or moved to another key."""
    for key, count in Counter((*head.handed_over, *head.retain)).items():
        path = "handed_over" if key in head.handed_over else "retain"
        if isinstance(draft.streams.get(key), OwnStream):
            rule = "is still declared here; leave its entry out, or say existing_arn there to go on reading it"
            yield Fault(path, key, rule)
        if any(stream.moved_from == key for stream in draft.streams.values()):
            yield Fault(path, key, "must not be a key that an entry is moved from")
        if count > 1:
            yield Fault(path, key, "must name each stream once")


def _moves(draft: Draft) -> Iterator[Fault]:
    sections: dict[str, Mapping[str, Stream | Application]] = {
        "streams": draft.streams,
        "applications": draft.applications,
    }
    for section, entries in sections.items():
        counts = Counter(entry.moved_from for entry in entries.values() if entry.moved_from)
        for key, entry in entries.items():
            old = entry.moved_from
            path = f"{section}.{key}"
            if old and (old in draft.written[section] or counts[old] > 1):
                yield Fault(f"{path}.moved_from", old, "must be a key that no entry has, and that no other moved from")
            if old and isinstance(entry, OwnStream | Application) and entry.name is None:
                rule = "is missing: moved_from needs the name it has in AWS, which would follow the new key otherwise"
                yield Fault(f"{path}.name", None, rule)


def looks_like_production(name: str) -> bool:
    """Whether the name of an environment suggests that it is a production environment.

    >>> [looks_like_production(name) for name in ("prod", "eu-prod-2", "production", "live", "dev", "products")]
    [True, True, True, True, False, False]
    """
    return _PRODUCTION.search(name) is not None


def _protection(head: Head) -> Iterator[Fault]:
    name = head.environment
    if name == "pipeline":
        yield Fault("environment", None, "must not be pipeline, as what pipelines need is called; use another name")
    if looks_like_production(name) and "protected" not in head.model_fields_set:
        rule = f"is missing: {name} looks like production; say protected: true, or false if nothing in it is to be kept"
        yield Fault("protected", None, rule)
    elif name == "prod" and not head.protected:
        yield Fault("protected", False, "must not be false in prod, which is always protected; say protected: true")


def _manifests(head: Head) -> Iterator[Fault]:
    if head.manifest_store == "s3" and head.emr is None and head.manifest_bucket is None:
        rule = "is missing: manifest_store s3 needs a bucket; name one, or declare one with emr: {}"
        yield Fault("manifest_bucket", None, rule)
    if head.manifest_store == "ssm" and head.manifest_bucket is not None:
        yield Fault("manifest_bucket", head.manifest_bucket, "must come with manifest_store: s3")


def _places(draft: Draft, head: Head) -> Iterator[Fault]:
    """Yield faults of regions, accounts, former keys, and lengths of names."""
    names = Names(draft.environment())
    if isinstance(head.key, str) and head.key != "own":
        yield from _same_region("key", head.key, head)
    if head.alarms.sns_topic:
        yield from _same_region("alarms.sns_topic", head.alarms.sns_topic, head)
    for key, stream in draft.streams.items():
        if isinstance(stream, AdoptedStream):
            path = f"streams.{key}"
            yield from _same_region(f"{path}.existing_arn", stream.existing_arn, head)
            if parse_arn(stream.existing_arn).account != head.account_id:
                readers = [name for name, each in draft.applications.items() if key in each.streams and each.subscribes]
                missing = [each for each in readers if each not in stream.consumers]
                if missing:
                    rule = (
                        f"is in another account, whose owner registers the consumers: consumers must name one for "
                        f"{', '.join(missing)}"
                    )
                    yield Fault(path, stream.existing_arn, rule)
        elif len(name := names.stream_name(key)) > 128:
            yield Fault(f"streams.{key}", name, "must give a name of at most 128 characters; say name:")
        for path, arn in keys_of(key, stream):
            yield from _same_region(path, arn, head)
        if stream.key in stream.former_keys:
            yield Fault(f"streams.{key}.former_keys", stream.key, "must not name its present key")
    for key, application in draft.applications.items():
        if isinstance(application.access, RoleAccess) and len(role := names.role_name(key)) > _ROLE_CHARACTERS:
            rule = f"an IAM role's name has at most {_ROLE_CHARACTERS} characters; say access.role_name:"
            yield Fault(f"applications.{key}", role, rule)
        elif len(policy := (names.batch_policy_name if application.batch else names.policy_name)(key)) > 128:
            yield Fault(
                f"applications.{key}", policy, "an IAM policy's name has at most 128 characters; say a shorter name:"
            )
        for stream_key in application.writes:
            target = draft.streams.get(stream_key)
            if isinstance(target, AdoptedStream) and parse_arn(target.existing_arn).account != head.account_id:
                rule = "must be in this account; for another account, its owner grants PutRecords"
                yield Fault(f"applications.{key}.writes", stream_key, rule)


def _same_region(path: str, arn: str, head: Head) -> Iterator[Fault]:
    region = parse_arn(arn).region
    if region != head.region:
        yield Fault(path, arn, f"must be in region {head.region}, as the environment; it is in {region}")


def _sizes(environment: Environment) -> Iterator[Fault]:
    limit = _PARAMETER_BYTES[environment.manifest_tier]
    for key, application in environment.applications.items():
        if isinstance(application.access, OtherAccount):
            continue
        texts = {"manifest": literals.literal_manifest(environment, key)} if environment.manifest_store == "ssm" else {}
        if environment.emr is not None:
            texts["job"] = literals.literal_deployment(environment, key)
        for what, text in texts.items():
            if (size := len(text.encode())) > limit:
                standard = environment.manifest_tier == "standard"
                elsewhere = "split the application" if what == "job" else "say manifest_store: s3"
                hint = "say manifest_tier: advanced" if standard else elsewhere
                rule = f"its {what} must fit the {environment.manifest_tier} parameter tier ({limit} bytes); {hint}"
                yield Fault(f"applications.{key}", f"{size} bytes", rule)
        characters = len(literals.literal_policy(environment, key).json())
        if characters > POLICY_CHARACTERS:
            rule = f"its policy must fit a managed policy ({POLICY_CHARACTERS} characters); split the application"
            yield Fault(f"applications.{key}", f"{characters} characters", rule)


def _of_others(environment: Environment) -> Iterator[str]:
    """Yield warnings about customer keys of other accounts, which only their owners can permit this environment to use."""
    used = [
        ("key", environment.key, "the roles that apply and read must be allowed kms:Decrypt and kms:GenerateDataKey")
    ]
    used += [
        (path, arn, "its writers must be allowed kms:GenerateDataKey, its readers kms:Decrypt")
        for key, stream in environment.streams.items()
        # Skip streams of other accounts: their owners change the key's policy together with the stream's.
        if isinstance(stream, OwnStream) or Names(environment).is_ours(key)
        for path, arn in keys_of(key, stream)
    ]
    used += [
        (
            f"applications.{key}.output_key",
            each.output_key,
            "its role must be allowed kms:Decrypt and kms:GenerateDataKey",
        )
        for key, each in environment.applications.items()
        if each.output_key
    ]
    for path, arn, what in used:
        if arn and arn.startswith("arn:") and parse_arn(arn).account != environment.account_id:
            yield f"{path}: {arn} is a key of another account, whose policy must say so: {what}"


def warnings(environment: Environment, today: date) -> Iterable[str]:
    """Yield warnings about settings that are allowed, but probably a mistake."""
    consumed = {key for application in environment.applications.values() for key in application.streams}
    for key, stream in environment.streams.items():
        if key not in consumed:
            yield f"streams.{key}: no application consumes it, yet it is billed while it exists"
        for former, until in stream.former_keys.items():
            if until < today:
                yield (
                    f"streams.{key}.former_keys: readers needed {former} until {until}, and can do without it now: remove it"
                )
        pollers = [
            each
            for each, application in environment.applications.items()
            if application.polling == "only" and key in application.streams
        ]
        if len(pollers) > _POLLERS:
            yield (
                f"streams.{key}: {len(pollers)} applications only poll it ({', '.join(pollers)}): each shard answers five GetRecords "
                "a second, and 2 MB/s, to all of them together"
            )
        for application_key, application in environment.applications.items():
            if not isinstance(application.access, OtherAccount) or key not in application.streams:
                continue
            reader = f"applications.{application_key} reads from another account"
            if isinstance(stream, AdoptedStream):
                yield (
                    f"streams.{key}: {reader}, but the policy of an adopted stream is its owner's: its owner must "
                    f"allow {', '.join(iam.READ_STREAM)} to those principals"
                )
            for _, arn in keys_of(key, stream):
                yield f"streams.{key}: {reader}: the policy of key {arn} must allow them kms:Decrypt"
    yield from _of_others(environment)
    if environment.region not in known_regions():
        yield f"region: {environment.region} is not known to the installed botocore: `make doctor` asks AWS"
    if environment.emr and environment.emr.release_label not in RELEASES:
        yield (
            f"emr.release_label: {environment.emr.release_label} is not known here ({', '.join(RELEASES)}): `make doctor` asks "
            "AWS whether there is one"
        )
    if environment.protected and environment.alarms.sns_topic is None:
        yield "alarms.sns_topic: nobody is told of an alarm in this protected environment"
    yield from schedules.warnings(environment)
