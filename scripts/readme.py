"""Writes links of README.md out in full for the package index: there, a link to a file of the repository would lead nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def linked(text: str, repository: str, version: str) -> str:
    """The text with links to files of the repository as they are at the tag of a version.

    >>> linked("![top](docs/top.svg), [how](docs/how.md#fast), [above](#above), [pip](https://pip.pypa.io)", "https://x.org/r", "1.2.0")
    '![top](https://x.org/r/raw/v1.2.0/docs/top.svg), [how](https://x.org/r/blob/v1.2.0/docs/how.md#fast), [above](#above), [pip](https://pip.pypa.io)'
    """
    images = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{repository}/raw/v{version}/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{repository}/blob/v{version}/", images)


class LinkedReadme(MetadataHookInterface):
    """Gives hatchling the description of the package. Before pyproject.toml names the repository, links stay as they are."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if repository := metadata.get("urls", {}).get("Repository"):
            text = linked(text, repository.rstrip("/"), metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
