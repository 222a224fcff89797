"""A repository that the command writes fits the workflows, and the roles that an administrator makes for it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from infra.errors import SettingsError
from infra.pipeline.deployments import deployment_of
from infra.settings.load import load_for_bootstrap
from infra.stacks.permissions.scope import Scope
from kinesis_efo_infra.pipeline import publisher
from kinesis_efo_infra.pipeline.__main__ import main
from kinesis_efo_infra.pipeline.environment import load, read
from kinesis_efo_infra.pipeline.new_repository import write
from tests.support.commands import outcome
from tests.unit.infra.conftest import rows

ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = ROOT / "examples" / "own_cdktf_app"


def files(directory: Path) -> Mapping[str, str]:
    listed = outcome(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=directory).stdout.split()
    named = listed or [str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()]
    return {name: (directory / name).read_text(encoding="utf-8") for name in named}


def test_example_is_what_the_command_writes(tmp_path: Path) -> None:
    assert main(["new-repository", str(tmp_path)]) == 0
    assert files(tmp_path) == files(EXAMPLE), (
        "python -m kinesis_efo_infra.pipeline new-repository examples/own_cdktf_app"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--publisher", "acme"], "as owner/name; got 'acme'"),
        (["--publisher", "acme/streams\nevil"], "as owner/name; got 'acme/streams\\nevil'"),
        (["--tag", "main"], "must be that of a release"),
        (["--tag", "v1"], "got 'v1'"),
        (["--environment", "Dev_1"], "got 'Dev_1'"),
    ],
)
def test_wrong_name_is_refused(
    arguments: list[str], message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["new-repository", str(tmp_path), *arguments]) == 1
    assert message in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "Makefile").write_text("mine", encoding="utf-8")
    assert main(["new-repository", str(tmp_path)]) == 1
    assert "nothing is overwritten, and" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"], "neither the one nor the others"
    assert main(["new-repository", str(tmp_path / "Makefile")]) == 1
    assert "cannot be written" in caplog.text
    assert main(["new-repository", str(tmp_path / "new"), "--engine", "cdktn"]) == 0
    assert f"{tmp_path / 'new' / 'README.md'} says what comes next" in caplog.text
    assert "[cdktn,pipeline]" in (tmp_path / "new" / "pyproject.toml").read_text(encoding="utf-8")


def test_repository_calls_workflows_of_its_publisher(tmp_path: Path) -> None:
    write(tmp_path, "lake", "acme/streams", "v1.2.3")
    (environment,) = load(tmp_path / "environments")
    assert environment.pipeline.workflows == ["acme/streams/.github/workflows/deploy-environment.yml@refs/tags/v1.2.3"]
    texts = "".join(files(tmp_path).values())
    assert publisher.REPOSITORY not in texts
    assert "streaming-dev" not in texts
    assert "@@" not in texts
    assert texts.count("==1.2.3") == 2


def test_workflows_assume_the_bootstrapped_roles() -> None:
    own = read(EXAMPLE / "environments" / "streaming-dev.yaml")
    theirs, bootstrapped = own.deployment, deployment_of(load_for_bootstrap(EXAMPLE / "environments", "streaming-dev"))
    names = ("plan_role", "apply_role", "github_environment", "state_bucket", "state_key", "record_key", "repository")
    for name in names:
        assert getattr(theirs, name) == getattr(bootstrapped, name), name
    # The name is one that this repository's stacks declare, and excuse.
    assert theirs.named == replace(bootstrapped.named, reserved=frozenset(), services=theirs.named.services)
    scope = Scope(load_for_bootstrap(EXAMPLE / "environments", "streaming-dev"))
    arn = "arn:aws:kms:us-east-1:123456789012:alias/kinesis-efo/{}".format
    application = ("application/streaming-dev/lake", "manifest/kinesis-efo/streaming-dev/lake")
    for alias in ("stream/streaming-dev-orders", *application):
        assert any(fnmatchcase(arn(alias), each) for each in scope.aliases), alias
    assert not any(fnmatchcase(arn("stream/streaming-devil"), each) for each in scope.aliases)


FAULTY = r"""
acount_id: '1' => acount_id: is no setting of this file; streams and applications are declared in the program
account_id: 111122223333 => account_id: Input should be a valid string; got 111122223333
region: eu-wst-1 => region: must be a region of AWS; is eu-west-1 meant?
environment: dev => environment: must be 'streaming-dev', as the file is called; got 'dev'
pipeline: {repository: acme/x, workflows: [acme/x@v1]} => pipeline.workflows.0: String should match
pipeline: {repository: acme/x, after: streaming-dev} => pipeline.after: must be another environment
"""


@pytest.mark.parametrize(("changes", "message"), rows(FAULTY))
def test_fault_of_an_environment_file_is_named(changes: str, message: str, tmp_path: Path) -> None:
    path = Path("environments", "streaming-dev.yaml")
    written = yaml.safe_load((EXAMPLE / path).read_text(encoding="utf-8")) | yaml.safe_load("{" + changes + "}")
    (tmp_path / path.name).write_text(yaml.safe_dump(written), encoding="utf-8")
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(tmp_path)
