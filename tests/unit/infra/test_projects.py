"""Projects share an account: no name of one is, or begins like, a name of another, and each keeps within AWS's lengths."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from infra.errors import SettingsError
from infra.settings.access import EmrServerless
from infra.settings.first import write_first
from infra.settings.literals import literal_manifest, literal_policy
from infra.settings.load import load_environment
from infra.settings.model import Application, Environment, OwnStream, Pipeline
from infra.settings.names import Names, environment_of
from infra.settings.values import ProjectName
from infra.stacks.permissions.scope import Scope
from kinesis_efo_tools.emr.job import job_name
from tests.support.environments import EXAMPLE
from tests.support.iam import allowed
from tests.unit.infra.conftest import Load

HEAD = {"region": "eu-west-1", "account_id": "111122223333", "state_bucket": "states"}
# The state bucket and GitHub's provider are the account's.
EVERYTHING = (
    "SHARED, region: eu-west-1, state_bucket: states, emr.serverless: NETWORK, streams: {orders: {}, clicks: {}}, applications: {lake:"
    "{streams: [orders, clicks], batch: true, access: SERVERLESS}, reports: {streams: [orders], access: EC2}},"
    "jobs: [{application: lake, program: jobs/archive.py}]"
)


def test_named_default_project_changes_nothing(load: Load, tmp_path: Path) -> None:
    named = load(f"{EVERYTHING}, environment: dev, project: kinesis-efo")
    assert named == load(f"{EVERYTHING}, environment: dev")
    assert load_environment(EXAMPLE).project == "kinesis-efo", "its names are those of earlier releases"


# Names that are easily taken for each other: parts of the default project, few letters, hyphens everywhere.
PROJECTS = st.sampled_from(["kinesis-efo", "a", "b", "ab", "efo", "kinesisefo", "pipeline", "dev"])
WORDS = st.lists(st.sampled_from(["a", "b", "ab", "kinesis", "efo", "dev", "pipeline"]), min_size=1, max_size=4).map(
    "-".join
)
KEYS = st.lists(WORDS, min_size=1, max_size=2, unique=True)


@st.composite
def environments(draw: st.DrawFn) -> Environment:
    """An environment of any project, with the names that follow from its own and from its entries' keys."""
    streams, applications = draw(KEYS), draw(KEYS)
    return Environment.model_construct(
        **HEAD,  # type: ignore[arg-type]
        environment=draw(WORDS),
        project=draw(PROJECTS),
        pipeline=Pipeline(repository="acme/lake"),
        emr=None,
        streams={key: OwnStream() for key in streams},
        applications={
            key: Application(streams=streams, access=EmrServerless(kind="emr-serverless")) for key in applications
        },
    )


def arns(environment: Environment) -> set[str]:
    """What an environment is, as IAM sees it."""
    names = Names(environment)
    bucket = names.bucket_arn(environment.state_bucket)
    path = names.path
    keys = (names.state_key, names.bootstrap_state_key, names.record_key)
    found = {f"{bucket}/{key}" for key in keys}
    found |= {names.pipeline_role_arn(kind) for kind in ("plan", "apply")}
    found |= {names.boundary_arn, names.iam_arn(f"policy/{names.roles_boundary_name}")}
    found |= {names.stream_arn(key) for key in environment.streams}
    found |= {names.arn("kms", f"alias/{path}{each}") for each in ("", "/orders")}
    found |= {names.arn("cloudwatch", f"alarm:{path}/orders/throttled")}
    found |= {f"arn:aws:cloudwatch::{environment.account_id}:dashboard/{names.prefix}"}
    of_key = (names.lease_table_arn, names.parameter_arn, names.policy_arn, names.role_arn)
    return found | {each(key) for key in environment.applications for each in of_key}


def reach(environment: Environment) -> set[str]:
    """Every pattern by which the roles of an environment's pipeline reach what has a name."""
    scope = Scope(environment)
    tagged = {*scope.keys, *scope.state_keys}
    groups = (getattr(scope, name) for name in vars(scope) if not name.startswith("_"))
    whole = {Names(environment).bucket_arn(environment.state_bucket)}
    return {pattern for group in groups for pattern in group} - tagged - whole


@given(environments(), environments())
def test_no_name_begins_like_one_of_another_project(one: Environment, other: Environment) -> None:
    if one.project == other.project:
        return
    assert not arns(one) & arns(other)
    assert Names(one).qualified != Names(other).qualified
    for ours, theirs in permutations((one, other)):
        found = [(p, arn) for p in reach(ours) for arn in arns(theirs) if fnmatchcase(arn, p)]
        assert found == []


@given(environments())
def test_stack_name_has_its_environment(environment: Environment) -> None:
    names = Names(environment)
    if not environment.environment.endswith("-bootstrap"):
        assert environment_of(names.stack_name) == environment.environment
        assert environment_of(names.bootstrap_stack_name) == environment.environment


@pytest.mark.parametrize(
    ("project", "rule"),
    [
        *(
            (each, r"must match \^\(kinesis-efo")
            for each in ("a-b", "Lake", "2lake", "", "l" * 17, "lake.x", "kinesis-efo-x")
        ),
        ("kinesis", "must be another name: those of kinesis-efo begin with kinesis- as well"),
        *((each, "must be another name: AWS keeps it") for each in ("aws", "awslake", "ssm", "sg", "amzn", "sthree")),
    ],
)
def test_ambiguous_project_is_refused(project: str, rule: str, load: Load, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"project: {rule}.*got '{project}'"):
        load(project=project)
    with pytest.raises(SettingsError, match="no project can have this name: it must "):
        write_first(tmp_path / "new", "dev", project)


@given(st.from_regex(r"[a-z][a-z0-9]{0,15}", fullmatch=True))
def test_other_names_are_projects(project: str) -> None:
    reserved = project.startswith(("aws", "ssm")) or project in ("kinesis", "sg", "amzn", "sthree")
    try:
        assert TypeAdapter(ProjectName).validate_python(project) == project
    except ValidationError:
        assert reserved
    else:
        assert not reserved


def test_longest_names_are_within_limits(load: Load) -> None:
    environment = load(EVERYTHING, environment="e" * 32, project="p" * 16)
    for kind in ("plan", "apply"):
        assert len(Names(environment).pipeline_role_name(kind)) <= 64
    assert max(len(Names(environment).pipeline_policy_name(kind)) for kind in ("change-access", "boundary")) <= 128
    assert len(Names(environment).artifacts_bucket) <= 63
    assert len(Names(environment).stack_name) <= 64, "an application of EMR Serverless"


@pytest.mark.parametrize("project", ["kinesis-efo", "lake", "p" * 16])
def test_job_may_read_its_stop_marker(project: str, load: Load) -> None:
    environment = load(EVERYTHING, environment="e" * 32, project=project)
    document = json.loads(literal_policy(environment, "lake").json())
    name = job_name(json.loads(literal_manifest(environment, "lake"))["environment"], "lake" * 20)
    bucket = Names(environment).bucket_arn(Names(environment).artifacts_bucket)
    assert allowed(document["Statement"], "s3:GetObject", f"{bucket}/stops/{name}/token", {})
    other = job_name("pond.dev", "lake")
    assert not allowed(document["Statement"], "s3:GetObject", f"{bucket}/stops/{other}/token", {})


def test_name_too_long_with_its_project_is_refused(load: Load) -> None:
    # 50 and 15 characters go with the default project: 64 is the most that a role's name has.
    key = "a" * (64 - len("lake-test-") + 1)
    applications = {key: {"streams": ["orders"], "access": {"kind": "emr-ec2"}}}
    with pytest.raises(SettingsError, match=r"an IAM role's name has at most 64 characters.*got 'lake-test-a"):
        load(project="lake", applications=applications)
    assert load(project="lak", applications=applications).project == "lak"
