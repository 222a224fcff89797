"""What the site does with the HTML of its pages."""

from __future__ import annotations

import pytest

from kinesis_efo.options import SOURCE_OPTIONS
from scripts.docs import ROOT, reference
from scripts.site_html import SHORT, strange_tags, with_whole_names


@pytest.mark.parametrize(
    ("html", "strange"),
    [
        ("<p>AFTER:<sequence number> for a shard</p>", ["<sequence number>"]),
        ("<p>AT_TIMESTAMP:<ISO 8601 or epoch ms></p>", ["<ISO 8601 or epoch ms>"]),
        ("<p>arn:<account>:<stream></p>", ["<account>", "<stream>"]),
        ("<p>a name that HTML knows: <table></p>", ["<table>"]),
        ("<p>left open: <a> and more</p>", ["<a>"]),
        ("<p>one <b>two</p>", ["<b>"]),
        ("<p>in upper case: <NAME></p>", ["<NAME>"]),
        ("<p>closed by itself: <name/></p>", ["<name/>"]),
        ("<p>at the end <em>", ["<p>", "<em>"]),
        ("<p>as text: AFTER:&lt;sequence number&gt;, <code>&lt;stream&gt;</code></p>", []),
        ('<p>an <img src="a.svg"> and a <br>break<br /> <a href="b.html">link</a></p>', []),
        ("<!-- <name> --><p>a &lt; b</p>", []),
    ],
)
def test_what_vanishes_between_angle_brackets_is_found(html: str, strange: list[str]) -> None:
    assert strange_tags(html) == strange


def test_rules_of_options_are_text() -> None:
    table = reference("option", SOURCE_OPTIONS)
    assert "AFTER:&lt;sequence number>" in table
    assert not [tag for tag in strange_tags(table) if "`" not in tag]


@pytest.mark.parametrize("name", [option.name for option in SOURCE_OPTIONS])
def test_no_option_breaks(name: str) -> None:
    assert len(name) <= SHORT
    assert with_whole_names(f"<code>{name}</code>") == f'<code class="name">{name}</code>'


def test_what_is_long_or_has_words_may_break() -> None:
    long = "s3://bucket/a-prefix/" + "x" * SHORT
    assert with_whole_names(f"<code>{long}</code>") == f"<code>s3://<wbr>bucket/<wbr>a-prefix/<wbr>{'x' * SHORT}</code>"
    placeholder = "<code>kinesis-efo-&lt;environment&gt;-&lt;name&gt;</code>"
    assert with_whole_names(placeholder) == placeholder.replace("<code>", '<code class="name">')
    for text in ("<code>kinesis-efo top</code>", "<pre><code>line\n</code></pre>"):
        assert with_whole_names(text) == text


def test_names_that_stay_whole_are_styled() -> None:
    assert ".md-typeset code.name {" in (ROOT / "docs" / "site.css").read_text()
