"""What a pipeline's steps are given is text to make and to the shell: it comes from jobs that run the code of many packages."""

import os
from pathlib import Path

import pytest

from tests.support.commands import outcome, program
from tests.support.isolated import ROOT
from tests.support.missing import make

TEMPLATE = ROOT / "packages/kinesis-efo-infra/kinesis_efo_infra/pipeline/template/Makefile.template"
STEPS = {
    "plan": ("ENV", "COMMIT", "HANDED"),
    "environments": ("BRANCH",),
    "approval": ("ENV", "COMMIT", "APPROVED", "SUMMARY"),
    "issue": ("ENV", "REPORT"),
    "comment": ("ONLY",),
    "apply": ("ENV", "COMMIT", "HANDED", "APPROVED", "OUTPUTS"),
    "drift": ("ENV", "HANDED", "REPORT", "LINK"),
}


@pytest.mark.parametrize(
    "text", ["dev; touch {0}$(shell touch {0})`touch {0}`'; touch {0}; echo '", "dev\n\ttouch {0}"]
)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("makefile", ["ours", "template"])
def test_arguments_of_a_step_are_never_run(makefile: str, step: str, text: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    environment = tmp_path / "environment"
    environment.mkdir()
    (environment / ".full").touch()
    for name in ("python", "kinesis-efo-infra"):
        program(environment / "bin" / name, r'printf "%s\0" "$@"')
    if makefile == "template":
        (tmp_path / "Makefile").write_text(TEMPLATE.read_text(encoding="utf-8").replace("@@ENVIRONMENT@@", "dev"))
    given = {name: text.format(ran) for name in STEPS[step]}
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = outcome(
        [make(), "--no-print-directory", step, f"PIPELINE_VENV={environment}"],
        cwd=ROOT if makefile == "ours" else tmp_path,
        env={**inherited, **given},
    )
    assert not ran.exists(), done.stdout + done.stderr
    if done.returncode:
        assert "\n" in text, "make cuts a recipe at the end of a line, and nothing else is refused"
        return
    # Word for word, each as one argument.
    words = done.stdout.split("\0")
    assert [each for each in words if "touch" in each] == list(given.values()), done.stderr
