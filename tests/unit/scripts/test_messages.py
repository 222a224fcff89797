"""Each error message has one example, and the runbook quotes messages as they are."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from kinesis_efo.errors import StreamError, StreamNotFoundError
from scripts.messages import FIELD, ROOT, Example, Origin, catalog, examples, page, places
from tests.support.messages import raises

WITHOUT = {"kinesis_efo": 84, "kinesis_efo_local": 2, "kinesis_efo_tools": 65}
"""How many messages of each package have no example. These numbers only go down."""


@pytest.fixture(scope="module")
def found() -> Mapping[Origin, Sequence[Example]]:
    # Not when the module is imported: each process of pytest-xdist imports all modules, and this takes three seconds.
    return catalog(places(), examples())


def test_new_message_has_an_example(found: Mapping[Origin, Sequence[Example]]) -> None:
    missing = [f"{place.path}, {place.function}: {place.message}" for place, made in found.items() if not made]
    assert Counter(each.split("/")[1] for each in missing) <= Counter(WITHOUT), "\n".join(missing)


def test_no_text_is_asserted_twice(found: Mapping[Origin, Sequence[Example]]) -> None:
    texts = Counter(example.text for made in found.values() for example in made)
    assert [text for text, times in texts.items() if times > 1] == [], "use pytest.raises without the text"


def test_pages_quote_messages_as_they_are() -> None:
    runbook, errors, cluster, network = (
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("runbook", "errors", "cluster", "network")
    )
    tables = [
        table
        for page in (runbook, cluster, network)
        for table in re.findall(r"^\| the message says \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    ]
    rows = re.findall(r"^\| (`.*?) \|", "\n".join(tables), re.MULTILINE)
    warnings = re.findall(r"[Ww]arn(?:ing|s):? (`[^`]+`)", runbook.replace("\n", " "))
    said = re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", errors.replace("\n", " "))
    quoted = [*said, *(text for each in (*rows, *warnings) for text in re.findall(r"`([^`]+)`", each))]
    assert len(quoted) > 20
    source = "\n".join(path.read_text() for path in sorted((ROOT / "lib").rglob("*.py")))
    # Literals one below the other are one text.
    texts = re.sub(r"%[sd]|%\.\df|\{[^{}]*\}|\d+", FIELD, re.sub(r'"\s*\n\s*f?"', "", source))
    parts = {part for text in quoted for part in re.split(r": | ?\.\.\. ", text)} - FOREIGN
    assert not [part for part in parts if re.sub(r"\d+", FIELD, part) not in texts]


FOREIGN = {
    "Connection refused",
    "not known",
    "resolution",
    "leaseTimeout",
    "retryTimeout",
    "does not support Trigger.AvailableNow",
    "replaced a statically registered data source",
}
"""What the operating system and Spark say, and options."""


def test_field_values_come_from_the_example() -> None:
    general = Origin("StreamError", "lib/a.py", "opened", "{}: {}", ("where", "error"))
    gone = Origin("StreamNotFoundError", "lib/a.py", "found", "stream {} is gone: deploy it", ("name",))
    example = Example("stream 'orders' is gone: deploy it", "tests/test_a.py", "test_stream_that_is_gone")
    assert catalog([general, gone], [example]) == {general: [], gone: [example]}
    text = page({gone: [example], general: []}, "# Errors\n\n## `StreamNotFoundError`\n\nGone.\n\n## `FrameError`\n")
    assert "<p>stream 'orders' is gone: deploy it</p>" in text
    assert "<code>lib/a.py</code>, <code>found</code>, <code>name = 'orders'</code>" in text
    assert text.index("Gone.") < text.index("<p>") < text.index("`FrameError`")


@pytest.mark.parametrize("text", ["stream", "stream ... was", "... 'a' is gone: deploy it", "stream 'b' is gone"])
def test_example_is_the_whole_message(text: str) -> None:
    with raises(StreamError, "stream ... is gone"):
        raise StreamError("stream 'a' is gone")
    with pytest.raises(AssertionError), raises(StreamError, text):
        raise StreamError("stream 'a' is gone")
    with pytest.raises(AssertionError), raises(StreamError, "stream 'a' is gone"):
        raise StreamNotFoundError("stream 'a' is gone")
