"""No role of an environment reaches another's, of its project or of another one, evaluated as IAM does, in one account, in whatever regions."""

from itertools import permutations
from typing import Any

import pytest

from infra.settings.literals import literal_policy
from infra.settings.model import Environment
from infra.settings.names import Names
from tests.support.iam import Statement, allowed, many
from tests.unit.infra.conftest import Load, in_json, policy, tags

REGIONS = ("eu-west-1", "us-east-1")
PIPELINE = {"repository": "acme/lake"}
FOREIGN = "arn:aws:kinesis:eu-west-1:777788889999:stream/events"
NETWORK = {"subnets": ["subnet-0123456789abcdef0"], "security_groups": ["sg-0123456789abcdef0"]}
# A policy of their own lets jobs use what their arguments name.
ACCESS = {"kind": "emr-serverless", "policies": ["arn:aws:iam::111122223333:policy/lake-output"]}


def declared(load: Load, name: str, region: str = "eu-west-1", **changes: Any) -> Environment:
    """An environment, such as `dev` or `lake.dev`, with a job on EMR Serverless, in a bucket and a database of its own."""
    output = f"s3://acme-lake-{name}/raw"
    project, _, environment = name.rpartition(".")
    return load(
        environment=environment,
        project=project or "kinesis-efo",
        region=region,
        protected=True,
        state_bucket="states",
        pipeline={**PIPELINE, "databases": [database(name)]},
        emr={"serverless": NETWORK},
        applications={"lake": {"streams": ["orders"], "access": ACCESS}},
        jobs=[{"application": "lake", "program": "jobs/archive.py", "arguments": ["--output", output]}],
        **changes,
    )


def database(name: str) -> str:
    return f"lake_{name}".replace(".", "_")


def boundary(environment: Environment) -> list[Statement]:
    return policy(environment, "boundary")


def own_tags(environment: Environment) -> dict[str, str]:
    """The context of a request for one of its resources."""
    return tags("Resource", Names(environment).qualified)


def asking(environment: Environment) -> dict[str, str]:
    """The context of a request for one of its resources, new or not, with its boundary and policy."""
    names = Names(environment)
    bound = {"iam:PermissionsBoundary": names.boundary_arn, "iam:PolicyARN": names.policy_arn("lake")}
    return own_tags(environment) | tags("Request", names.qualified) | bound


def named(statements: list[Statement]) -> set[tuple[str, str]]:
    """Actions and resources that statements name, with something in place of each star."""
    return {
        (action, resource.replace("*", "x"))
        for each in statements
        for action in many(each.get("Action", []))
        for resource in many(each.get("Resource", []))
        if "*" not in action and resource != "*"
    }


# Environments of one project, a project beside the default one and beside another, and where names begin alike.
TWO = "dev prod, dev dev-2, dev dev2, dev lake.dev, lake.dev pond.dev, lake lake.dev, lake-dev lake.dev, a.b-c ab.c"
PAIRS = [pair for each in TWO.split(", ") for pair in permutations(each.split())]
PLACES = [(*pair, here, there) for here, there in ((0, 0), (0, 1)) for pair in (PAIRS[::2] if there else PAIRS)]


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other", "here", "there"), PLACES)
def test_environment_reaches_nothing_of_another(one: str, other: str, here: int, there: int, load: Load) -> None:
    ours, theirs = declared(load, one, REGIONS[here]), declared(load, other, REGIONS[there])
    # Claiming it with our tags and our boundary does not help.
    claimed = {key: value for key, value in asking(ours).items() if "ResourceTag" not in key and "ARN" not in key}
    for statements, least in ((boundary, 60), (policy, 160)):
        mine, others = statements(ours), statements(theirs)
        found = [each for each in named(others) if allowed(others, *each, asking(theirs))]
        assert len(found) > least
        for context in (asking(theirs), asking(theirs) | claimed):
            assert [each for each in found if allowed(mine, *each, context)] == []
        # `dev` beside `dev-2` is refused, as names alone do not keep them apart.
        if (one, other) != ("dev", "dev-2"):
            assert [each for each in {*found} - named(mine) if allowed(mine, *each, {})] == []
    state = Names(theirs).bucket_arn(theirs.state_bucket)
    for key in (Names(theirs).state_key, Names(theirs).bootstrap_state_key, Names(theirs).record_key):
        for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
            assert not allowed(boundary(ours), action, f"{state}/{key}", {})
            assert not allowed(policy(ours), action, f"{state}/{key}", {})


@pytest.fixture
def adopting(load: Load) -> Environment:
    """An environment with given keys and streams, one of them of another environment, and jobs with and without roles."""
    given = "arn:aws:kms:eu-west-1:111122223333:key"
    events = "{existing_arn: FOREIGN, consumers: {lake: 'FOREIGN/consumer/lake:1'}}"
    streams = f"orders: {{}}, named: {{name: shop}}, events: {events}, payments: {{existing_arn: STREAM, key: '{given}/others'}}"
    return load(
        f"PIPELINE, emr: {{}}, key: '{given}/given', streams: {{{streams}}},"
        "applications: {lake: {streams: [orders, named, payments, events], access: SERVERLESS},"
        "own: {streams: [orders], writes: [named], polling: true, lease_table: OldTable}}"
    )


@pytest.mark.parametrize("key", ["lake", "own"])
def test_boundary_leaves_a_job_what_its_policy_grants(key: str, adopting: Environment) -> None:
    bound = boundary(adopting)
    others = {"aws:ResourceTag/environment": "prod", "aws:ResourceTag/managed-by": "kinesis-efo"}
    given = ("stream/payments", "stream/events", "key/given", "key/others")
    for statement in in_json(list(literal_policy(adopting, key).statements.values())):
        via = statement.get("Condition", {}).get("StringEquals", {}).get("kms:ViaService", [""])
        for action in statement["Action"]:
            for resource in statement["Resource"]:
                context = others if any(each in resource for each in given) else own_tags(adopting)
                answer = allowed(bound, action, resource, {**context, "kms:ViaService": via[0]})
                assert answer == (statement["Effect"] == "Allow"), (action, resource)
