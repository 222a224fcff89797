"""Fixtures that write environment files, load them and synthesize them."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks import permissions
from infra.stacks.app import synthesize
from kinesis_efo_infra import iam
from kinesis_efo_infra.regions import partition
from tests.support.iam import Statement

HEAD = {"environment": "test", "region": "eu-west-1", "account_id": "111122223333", "state_bucket": "state"}

PRICES = Path(__file__).parents[2] / "support" / "prices.json"
Write = Callable[..., Path]
Load = Callable[..., Environment]
Synth = Callable[..., dict[str, Any]]

STREAM = "arn:aws:kinesis:eu-west-1:111122223333:stream/payments"
FOREIGN = "arn:aws:kinesis:eu-west-1:777788889999:stream/events"
KEY = "arn:aws:kms:eu-west-1:111122223333:key/0123abcd"
WORDS = {
    "STREAM": STREAM,
    "FOREIGN": FOREIGN,
    "KEY": KEY,
    "THEIR_KEY": "arn:aws:kms:eu-west-1:777788889999:key/0123abcd",
    "OIDC": "arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/AB12",
    "PARTNER": "{kind: other-account, principals: ['arn:aws:iam::777788889999:role/partner']}",
    "SERVERLESS": "{kind: emr-serverless}",
    "EC2": "{kind: emr-ec2}",
    "NETWORK": "{subnets: [subnet-0123456789abcdef0], security_groups: [sg-0123456789abcdef0]}",
    "PIPELINE": "pipeline: {repository: acme/lake}",
    "SHARED": "pipeline: {repository: acme/data, adopt_state_bucket: true, oidc_provider_arn: "
    "'arn:aws:iam::111122223333:oidc-provider/token.actions.githubusercontent.com'}",
    "OURS": "emr: {}, jobs: [{application: lake, program: a.py}], applications.lake: {streams: [orders], output: 's3://lake/raw', checkpoint: 's3://state-of-lake/a/b',"
    "output_key: 'arn:aws:kms:eu-west-1:111122223333:key/lake', access: {kind: emr-serverless}},"
    "jobs.0.arguments: ['--output=$output/x', --checkpoint, $checkpoint, $outputs, a$b],"
    "jobs.0.spark: {spark.sql.warehouse.dir: $output/tables}",
    "JOB": "emr: {}, applications.lake.access: {kind: emr-serverless}, jobs: [{application: lake, program: a.py}]",
}
"""Words that stand for longer texts in changes of an environment file."""


def changes_of(text: str) -> dict[str, Any]:
    """Changes written as `streams.orders.key: KEY, emr: {}`: YAML without the outer braces."""
    written = text.replace("OURS", WORDS["OURS"])
    written = re.sub(r"\b[A-Z][A-Z_2]+\b", lambda found: WORDS.get(found[0], found[0]), written)
    changes: dict[str, Any] = yaml.safe_load("{" + written + "}")
    return changes


def document(text: str = "", /, **changes: Any) -> dict[str, Any]:
    """The smallest valid environment file, with changes; a key with dots leads into mappings and lists."""
    written = changes_of(text)
    given = {**HEAD, **changes, **written}
    region = given["region"] if re.fullmatch(r"(cn|eu|eusc|us)(-[a-z]+)+-\d", str(given["region"])) else HEAD["region"]
    alarms = {"sns_topic": f"arn:{partition(region)}:sns:{region}:{given['account_id']}:oncall"}
    applications = {"lake": {"streams": ["orders"]}}
    found = deepcopy({**HEAD, "streams": {"orders": {}}, "applications": applications, "alarms": alarms, **changes})
    for path, value in written.items():
        put(found, path, value)
    return found


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set what a path with dots leads to, through mappings and lists."""
    *way, last = path.split(".")
    inner: Any = document
    for key in way:
        inner = inner[int(key)] if isinstance(inner, list) else inner.setdefault(key, {})
    inner[int(last) if isinstance(inner, list) else last] = value


def arn(action: str, rest: str) -> str:
    """The ARN of a resource in the environment's account, for an action on it."""
    service = action.partition(":")[0]
    places = {"s3": ":", "iam": ":111122223333", "sts": ":111122223333"}
    return (
        rest
        if rest.startswith(("arn:", "*"))
        else f"arn:aws:{service}:{places.get(service, 'eu-west-1:111122223333')}:{rest}"
    )


def attempts(text: str) -> Iterator[tuple[bool, str, str, str]]:
    """The rows `+ service:Action,service:Other resource | context` of a table: whether it is allowed, action, ARN, context."""
    for line in text.strip().splitlines():
        if line and not line.startswith("#"):
            attempt, _, context = line.partition(" | ")
            sign, actions, rest = attempt.split(maxsplit=2)
            for action in actions.split(","):
                yield sign == "+", action, arn(action, rest), context


def policy(environment: Environment, *kinds: str) -> list[Statement]:
    """The statements of policies as AWS gets them; by default of all that the role that applies has."""
    policies = permissions.policies(environment)
    return in_json([each for kind in kinds or set(policies) - {"boundary"} for each in policies[kind]])


def in_json(statements: Sequence[iam.Statement]) -> list[Statement]:
    return list(json.loads(iam.policy_json(list(statements)))["Statement"])


def tags(kind: str, environment: str = "test", managed_by: str = "kinesis-efo") -> dict[str, str]:
    """The context of a request with tags, or on a resource that has them."""
    return {f"aws:{kind}Tag/environment": environment, f"aws:{kind}Tag/managed-by": managed_by}


LISTING = ["kinesis:DescribeStreamSummary", "kinesis:ListShards"]
GETTING = ["kinesis:DescribeStreamSummary", "kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:ListShards"]


def statements(stack: dict[str, Any], document: str) -> dict[str, dict[str, Any]]:
    return {each["sid"]: each for each in stack["data"]["aws_iam_policy_document"][document]["statement"]}


def scenarios(text: str) -> list[Any]:
    """The scenarios of a table: a name, a bar and what is given; then, indented, what is expected at each path."""
    found = []
    for block in re.split(r"\n(?=\S)", text.strip()):
        head, _, expected = block.partition("\n")
        if not head.startswith("#"):
            name, _, changes = head.partition(" | ")
            found.append(pytest.param(changes, expected, id=name))
    return found


def expected_at(text: str) -> dict[str, Any]:
    text = re.sub(r"<([a-z][^>]+)>([^\s,\]}]*)", r"'${\1}\2'", text)
    text = re.sub(r"\b(STREAM|FOREIGN|KEY)\b", lambda name: WORDS[name[0]], text)
    text = text.replace("GETTING", json.dumps(GETTING)).replace("LISTING", json.dumps(LISTING))
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def at(stack: dict[str, Any], path: str) -> Any:
    data = stack.get("data", {})
    documents = {name: statements(stack, name) for name in data.get("aws_iam_policy_document", ())}
    found: Any = {**stack, **data, **stack["resource"], **documents, "documents": documents}
    for key in path.split("."):
        if key == "*":
            return sorted(found or ())
        if key == "?":
            (found,) = found.values()
            continue
        found = found[int(key)] if isinstance(found, list) else (found or {}).get(key)
    return found


def check(stack: dict[str, Any], expected: str) -> None:
    """Check what a stack has at each path: resources, data, policy documents by statement id, and the rest of the file.

    `*` is the sorted keys there, `?` the only value, `null` that nothing is there, `with` some of what is there, `has` and `lacks` a
    part of the text, <a.b> Terraform's ${a.b}.
    """
    for path, value in expected_at(expected).items():
        place, _, relation = path.partition(" ")
        if relation == "with":
            inner = at(stack, place)
            assert {key: inner[key] for key in value} == value, path
        elif relation:
            for part in value if isinstance(value, list) else [value]:
                assert (part in str(at(stack, place))) == (relation == "has"), f"{path}: {part}"
        else:
            assert at(stack, place) == value, path


def rows(text: str) -> list[tuple[str, str]]:
    """The rows of a table whose two columns are parted by an arrow; lines with # are comments."""
    lines = [line for line in text.strip().splitlines() if line and not line.startswith("#")]
    return [(left.strip(), right.strip()) for left, _, right in (line.partition(" => ") for line in lines)]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes an environment file and returns its path."""

    def writer(text: str = "", /, **changes: Any) -> Path:
        content = document(text, **changes)
        path = tmp_path / f"{content['environment']}.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return path

    return writer


@pytest.fixture
def load(write: Write) -> Load:
    """Writes an environment file and loads it."""
    return lambda text="", /, **changes: load_environment(write(text, **changes))


@pytest.fixture
def synth(load: Load, tmp_path: Path) -> Synth:
    """The Terraform JSON of an environment, without metadata."""

    def synthesizer(given: Environment | str = "", /, **changes: Any) -> dict[str, Any]:
        chosen = load(given, **changes) if isinstance(given, str) else given
        if chosen.protected:
            from infra.settings import ledger

            ledger.accept(tmp_path, chosen)
        out = synthesize([chosen], tmp_path, outdir=tmp_path / "out")
        return read_stack(out / "stacks" / Names(chosen).stack_name)

    return synthesizer


def read_stack(directory: Path) -> dict[str, Any]:
    """The Terraform JSON in the directory of a stack, without CDKTF's comments."""
    text = (directory / "cdk.tf.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text, object_hook=lambda each: {k: v for k, v in each.items() if k != "//"})
    return found


@pytest.fixture(autouse=True)
def prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices that stay as they are when somebody refreshes those of the package."""
    monkeypatch.setattr("kinesis_efo_infra.pipeline.prices.FILE", PRICES)
