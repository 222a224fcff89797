"""Repacks installed packages as wheels in one zip file, which Glue 5 and later install without a package index.

Source: AWS Glue, "Using Python libraries with AWS Glue", appendix A: `wheels/requirements.txt` and the wheels beside it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from email.parser import Parser
from pathlib import Path
from typing import Any, Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

SUFFIX: Final = ".gluewheels.zip"
"""Suffix of the zip file's name. Glue requires it to unpack the wheels."""
_INSTALLERS: Final = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def pack_wheels(tree: Path, file: Path, left_out: tuple[str, ...], described: Mapping[str, Any]) -> str:
    """Write the packages that are installed in `tree` as wheels to a zip file, without the modules in `left_out`.

    `described` is stored in the zip file's comment, together with the digest. Returns the digest: a SHA-256 of all contents, in hex.
    """
    digest, requirements = hashlib.sha256(), []
    with ZipFile(file, "w", ZIP_STORED) as outer:
        for information in sorted(tree.glob("*.dist-info")):
            name, contents, record = _wheel(tree, information, left_out)
            digest.update(f"{name}\n{record}".encode())
            _write(outer, f"wheels/{name}", contents)
            requirements.append("==".join(information.name.removesuffix(".dist-info").rsplit("-", 1)))
        _write(outer, "wheels/requirements.txt", "".join(f"{each}\n" for each in requirements).encode())
        outer.comment = json.dumps({**described, "digest": digest.hexdigest()}, sort_keys=True).encode()
    return digest.hexdigest()


def read_wheels(file: Path) -> dict[str, Any]:
    """Return the data that `pack_wheels` stored in the zip file's comment."""
    with ZipFile(file) as outer:
        found: dict[str, Any] = json.loads(outer.comment)
    return found


def _wheel(tree: Path, information: Path, left_out: tuple[str, ...]) -> tuple[str, bytes, str]:
    """Build the wheel of an installed package; returns its file name, its contents and its RECORD."""
    tags = Parser().parsestr((information / "WHEEL").read_text(encoding="utf-8")).get_all("Tag", [])
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*(each.split("-") for each in tags), strict=True))
    rows, written = [], io.BytesIO()
    with ZipFile(written, "w", ZIP_DEFLATED) as wheel:
        for name, *_ in sorted(csv.reader((information / "RECORD").read_text(encoding="utf-8").splitlines())):
            own = Path(name)
            if own.parts[0] in ("..", "bin", *left_out) or (
                own.parts[0] == information.name and own.name in _INSTALLERS
            ):
                continue
            contents = (tree / own).read_bytes()
            hashed = urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
            rows.append([name, f"sha256={hashed}", str(len(contents))])
            _write(wheel, name, contents)
        record = io.StringIO()
        csv.writer(record, lineterminator="\n").writerows([*rows, [f"{information.name}/RECORD", "", ""]])
        _write(wheel, f"{information.name}/RECORD", record.getvalue().encode())
    return f"{information.name.removesuffix('.dist-info')}-{tag}.whl", written.getvalue(), record.getvalue()


def _write(archive: ZipFile, name: str, contents: bytes) -> None:
    entry = ZipInfo(name, _EPOCH)
    entry.compress_type = archive.compression
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, contents)
