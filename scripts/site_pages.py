"""Makes the pages of the repository those of a site: a hook of mkdocs.yml.

The pages stay as GitHub shows them. Where one links to a page of the site, so does the site; links to other files of the repository
lead to its address, if pyproject.toml has one, or are only text.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
import tomllib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from scripts import llms, messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = {
    "README.md": "index.md",
    "AGENTS.md": "how-to/assistants.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/fault_injection/README.md": "how-to/fault-injection.md",
    "tests/SCENARIOS.md": "scenarios.md",
}
"""Pages outside of docs/, and what they are called on the site."""
GROUPS: Final = {
    "Reading": ("read_stream", "StreamKeywords", "read", "BatchKeywords", "register", "SCHEMA"),
    "Rows": ("from_json", "position", "write_once"),
    "Jobs": (
        "job",
        "keep_alive",
        "cause",
        "low_latency",
        "LowLatency",
        "stop_signals",
        "wait_for_stop",
        "LagListener",
        "BatchProgress",
        "progress",
        "ShardKey",
    ),
    "Writing without Spark": ("Producer", "AsyncProducer", "Written", "ProducerSettings", "ProducerMetrics"),
    "Settings": ("AwsSettings", "MetricsSettings", "SinkKeywords"),
}
"""The public names on the page of the Python API; exceptions follow."""
CONSTRUCTS: Final = {
    "Streams": ("Stream", "StreamConsumer"),
    "Applications": ("StreamingApplication", "StreamingGlueJob", "LeaseTable", "Manifest"),
    "Access": ("ReaderAccess", "BatchAccess", "EmrOnEc2", "EmrServerless", "Glue", "PodIdentity", "ServiceAccount"),
    "Permissions": ("Grant", "ArnPrincipal", "ServicePrincipal", "Polling", "policy_for", "Policy", "Statement"),
    "Watching": ("ConsumerAlarms", "Dashboard", "Metric"),
    "Keys, names and accounts": ("CustomerKey", "Place", "pin_account"),
    "Exceptions": ("InfraError", "ArgumentError", "MissingError"),
}
"""The public names on the page of the constructs."""
MOVED: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "exactly-once": ("guarantees", {}),
    "exactness": ("why-it-holds", {}),
    "reliability": ("failures", {"the-promise": "guarantees"}),
    "monday": ("deploy", {}),
    "declare-your-streams": (
        "environment-file",
        dict.fromkeys(("add-rename-remove", "take-over-what-exists", "change-a-streams-key"), "change-streams"),
    ),
    "gitops": ("pipeline", dict.fromkeys(("set-it-up", "who-may-do-what", "other-ci-systems"), "pipeline-setup")),
    "how-to/pipeline": ("../pipeline-setup", {}),
    "how-to/pipelines": ("declarative-pipelines", {}),
}
"""Where pages are that remedies and links of former versions name, and sections that went elsewhere."""
_FORMS: Final = {
    "Event": r"\bevents?(?![\w-]| time| log| loop)",
    "Lease": r"(?<![\w-])[Ll]eases?(?![\w-]|\s+table)",
    "Mark": r"(?<=[Tt]he |its )marks?\b",
    "Range": r"(?<![\w-])[Rr]anges?(?![\w-]|\s+(?:of hash|with))",
    "Reads apart": r"\breads? apart",
    "Run": r"\b(?:[Tt]he|[Aa]|one|share a|each) run(?!\w|-)",
}
"""How terms look that are not found by their letters alone."""
_OTHER_RUNS: Final = {"Run": ("run-on-emr.md", "alarms.md", "pipeline.md", "pipeline-setup.md")}
"""Pages that speak of something else by this name, as of EMR's."""
_NO_PROSE: Final = re.compile(
    r"(^ *```.*?^ *```|^#.*?$|<[^>]*>|!?\[(?:`[^`]*`|[^\[\]`])*\]\([^)]*\)|`[^`]*`)", re.DOTALL | re.MULTILINE
)
_CODE: Final = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"\[((?:`[^`]*`|[^\[\]`])*)\]\(([^)\s]+)\)")


def with_links_of_the_site(text: str, page: str, repository: str | None) -> str:
    """A page whose links lead to pages of the site.

    Args:
        text: The page in Markdown.
        page: Its path in the repository.
        repository: The repository's address, if it has one.

    >>> with_links_of_the_site("[a job](../README.md#a-job), [`jobs/`](../jobs), [tables](options.md)", "docs/cluster.md", None)
    '[a job](index.md#a-job), `jobs/`, [tables](options.md)'
    """
    here = PurePosixPath(_on_site(page)).parent

    def replaced(link: re.Match[str]) -> str:
        words, target = link.groups()
        path, hash_, anchor = target.partition("#")
        if not path or "://" in path:
            return link[0]
        found = os.path.normpath(PurePosixPath(page).parent / path)
        if found in OUTSIDE or re.fullmatch(r"docs/.+\.(?:md|svg)", found):
            return f"[{words}]({os.path.relpath(_on_site(found), here)}{hash_}{anchor})"
        return f"[{words}]({repository}/blob/HEAD/{found})" if repository else words

    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)


def _on_site(path: str) -> str:
    """Where a page of the repository is on the site."""
    return OUTSIDE.get(path, path.removeprefix("docs/"))


def with_indents_of_mkdocs(text: str) -> str:
    """A page in whose lists further paragraphs, code and lists are indented by four spaces: GitHub takes two or three as well.

    >>> with_indents_of_mkdocs("- One\\n  goes on.\\n  - Two\\n\\n  Three")
    '- One\\n  goes on.\\n    - Two\\n\\n    Three'
    """
    parts = _CODE.split(text)
    for number, part in enumerate(parts):
        if number % 2 == 0:
            parts[number] = re.sub(r"^ {2,3}(?=(?:[-*]|\d+\.) )", "    ", part, flags=re.MULTILINE)
            # What follows a blank line: to the next one, or to the next item, which then wants a blank line, too.
            parts[number] = re.sub(r"(?<=\n\n)(?: {2,3}\S.*\n?)+", _widened, parts[number])
            parts[number] = re.sub(r"^(    .*\n)(?=(?:[-*]|\d+\.) )", r"\1\n", parts[number], flags=re.MULTILINE)
        else:
            parts[number] = _widened(part)
    return "".join(parts)


def _widened(block: str | re.Match[str]) -> str:
    text = block if isinstance(block, str) else block[0]
    indent = len(text) - len(text.lstrip(" "))
    return textwrap.indent(text, " " * (4 - indent)) if indent in (2, 3) else text


def with_terms(text: str, page: str, terms: Iterable[str]) -> str:
    """A page whose first use of each term of the glossary, outside of code, links and headings, leads there.

    Args:
        text: The page in Markdown.
        page: Its path on the site.
        terms: The glossary's headings.

    >>> with_terms("# Leases\\n\\nA `lease` of [leases](a.md): two leases, `x` lease `y`.", "how-to/b.md", ["Lease"])
    '# Leases\\n\\nA `lease` of [leases](a.md): two [leases](../glossary.md#lease), `x` lease `y`.'
    """
    glossary = os.path.relpath("glossary.md", PurePosixPath(page).parent)
    parts = _NO_PROSE.split(text)  # prose is at even places
    for term in sorted(terms, key=len, reverse=True):
        pattern = re.compile(_FORMS.get(term, rf"(?<![\w-])(?i:{term}s?)(?![\w-])"))
        for place in range(0, len(parts), 2):
            if page not in _OTHER_RUNS.get(term, ()) and (found := pattern.search(parts[place])):
                before, after = parts[place][: found.start()], parts[place][found.end() :]
                parts[place : place + 1] = [before, f"[{found[0]}]({glossary}#{anchor(term, '-')})", after]
                break
    return "".join(parts)


def moved() -> dict[str, str]:
    """For each page that has moved, what leads old addresses to the new one."""
    return {
        f"{old}.html": '<meta charset="utf-8"><title>Moved</title><script>\n'
        f"const to = {json.dumps(sections)}[location.hash.slice(1)] || {json.dumps(new)};\n"
        'location.replace(to + ".html" + location.hash);\n'
        f'</script><a href="{new}.html">Moved</a>\n'
        for old, (new, sections) in MOVED.items()
    }


def anchor(heading: str, _separator: str) -> str:
    """The anchor of a heading, as GitHub makes it.

    >>> anchor("Fetching or Spark?", "-")
    'fetching-or-spark'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def python_api() -> str:
    """The page of the Python API: every public name, for mkdocstrings."""
    lines = ["# Python API", "", "What `import kinesis_efo` gives; [what you can rely on](versioning.md).", ""]
    for title, names in GROUPS.items():
        lines += [f"## {title}", "", *(line for name in names for line in (f"::: kinesis_efo.{name}", ""))]
    errors = ROOT / "lib" / "kinesis_efo" / "errors.py"
    names = re.findall(r"^class (\w+)", errors.read_text(), re.MULTILINE)
    public = (ROOT / "lib" / "kinesis_efo" / "__init__.py").read_text()
    lines += ["## Exceptions", "", "[Errors](errors.md) says what to do about each.", ""]
    homes = {name: "kinesis_efo" if f'"{name}",' in public else "kinesis_efo.errors" for name in names}
    lines += [line for name, home in homes.items() for line in (f"::: {home}.{name}", "")]
    return "\n".join(lines)


def constructs() -> str:
    """The page of the constructs' package: every public name, for mkdocstrings."""
    lines = ["# Constructs", "", "What `import kinesis_efo_infra` gives; [how to use it](how-to/own-cdktf-app.md).", ""]
    for title, names in CONSTRUCTS.items():
        lines += [f"## {title}", "", *(line for name in names for line in (f"::: kinesis_efo_infra.{name}", ""))]
    return "\n".join(lines)


def examples() -> str:
    """The page of the programs to copy. Without a table of contents there is room for lines of 120 characters."""
    lines = ["---", "hide: [toc]", "---", "", "# Programs to copy", ""]
    programs = [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "emr_connector").glob("*.py")]
    for path in [*sorted(programs), ROOT / "jobs" / "archive.py"]:
        lines += [f"## {path.relative_to(ROOT)}", "", "```python", path.read_text().rstrip(), "```", ""]
    return "\n".join(lines)


def _repository() -> str | None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    address: str | None = project.get("urls", {}).get("Repository")
    return address


_texts: Final[dict[str, str]] = {}
"""The pages of the site, for assistants."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by MkDocs."""
    config.repo_url = _repository()
    config.mdx_configs["toc"]["slugify"] = anchor
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs: adds the pages that are not in docs/."""
    from mkdocs.structure.files import File

    texts = {name: (ROOT / path).read_text() for path, name in OUTSIDE.items()}
    for name, text in {
        **texts,
        **moved(),
        "python.md": python_api(),
        "constructs.md": constructs(),
        "examples.md": examples(),
    }.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Called by MkDocs with each page."""
    name = page.file.src_uri
    if name == "errors.md":
        markdown = messages.page(messages.catalog(messages.places(), messages.examples()), markdown)
    _texts[name] = markdown
    path = next((path for path, other in OUTSIDE.items() if other == name), f"docs/{name}")
    text = with_links_of_the_site(markdown, path, config.repo_url)
    if path == "README.md" or (name != "glossary.md" and (ROOT / "docs" / name).exists()):
        terms = re.findall(r"^## (.*)$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
        text = with_terms(text, name, terms)
    return with_indents_of_mkdocs(text)


def on_post_build(config: MkDocsConfig) -> None:
    """Called by MkDocs at the end."""
    assert config.nav is not None, "mkdocs.yml has one"
    site = Path(config.site_dir)
    (site / "llms.txt").write_text(llms.index(config.nav, _texts, str(config.site_description)), encoding="utf-8")
    (site / "llms-full.txt").write_text(llms.full(config.nav, _texts), encoding="utf-8")
