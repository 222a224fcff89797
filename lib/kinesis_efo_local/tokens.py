"""Opaque tokens for clients (shard iterators, pagination): JSON in base64, with a checksum to detect corrupted tokens."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

import msgspec


def seal(content: dict[str, Any]) -> str:
    """Encode `content` as a token."""
    raw = msgspec.json.encode(content)
    return base64.urlsafe_b64encode(zlib.crc32(raw).to_bytes(4, "big") + raw).decode()


def open_token(token: str) -> dict[str, Any] | None:
    """Decode a token; None if `seal` did not create it."""
    try:
        raw = base64.urlsafe_b64decode(token)
    except (binascii.Error, ValueError):
        return None
    if len(raw) < 4 or zlib.crc32(raw[4:]) != int.from_bytes(raw[:4], "big"):
        return None
    content = msgspec.json.decode(raw[4:])
    return content if isinstance(content, dict) else None
