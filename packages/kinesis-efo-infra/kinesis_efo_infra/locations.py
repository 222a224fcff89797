"""S3 locations below which an application stores its output or its checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kinesis_efo_infra.errors import ArgumentError

_TOKEN: Final = r"\$\{TfToken\[[\w.]+\]\}"
_WITH_TOKENS: Final = re.compile(
    rf"s3://(?P<bucket>(?:[a-z0-9.-]|{_TOKEN})+)/(?P<prefix>(?:[A-Za-z0-9_.=/-]|{_TOKEN})+)"
)
"""Pattern for an S3 URI that may contain CDKTF tokens, such as one for the name of a declared bucket."""
_URI: Final = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<prefix>[A-Za-z0-9_.=/-]+)")
"""Pattern for an S3 URI without IAM wildcards and variables. Source: Amazon S3 user guide, bucket naming rules and object key names."""


@dataclass(frozen=True, slots=True)
class Location:
    """A bucket and a prefix in it. The location includes the key `<prefix>` and all keys that begin with `<prefix>/`.

    Attributes:
        bucket: Name of the bucket.
        prefix: The prefix, without a `/` at its beginning or end.

    >>> Location.parse("s3://lake/raw").overlaps(Location.parse("s3://lake/raw/checkpoints"))
    True
    >>> Location.parse("s3://lake/raw").overlaps(Location.parse("s3://lake/raw-2"))
    False
    """

    bucket: str
    prefix: str

    @staticmethod
    def parse(uri: str, *, tokens: bool = False) -> Location:
        """Parse the URI of a location.

        Args:
            uri: `s3://bucket/prefix`.
            tokens: Whether bucket and prefix may contain CDKTF tokens.

        Raises:
            ArgumentError: `uri` has another form, or lacks a prefix.
        """
        found = _URI.fullmatch(uri) if isinstance(uri, str) else None
        if found is None and tokens and isinstance(uri, str) and "${" in uri:
            found = _WITH_TOKENS.fullmatch(uri)
            if found is None:
                raise ArgumentError(
                    "a location that only Terraform knows must still begin with s3:// and have a / behind its bucket: give "
                    "f's3://{bucket.bucket}/prefix', of a bucket that is declared"
                )
        parts = found["prefix"].split("/") if found else [""]
        if found is None or {"", ".", ".."} & set(parts):
            raise ArgumentError(
                "a location must be s3://bucket/prefix, whose parts have letters, digits, '_', '.', '=' and '-', and no '/' at "
                f"the end; got {uri!r}: give a prefix, as what lies beside it is out of reach"
            )
        return Location(found["bucket"], found["prefix"])

    @property
    def uri(self) -> str:
        """The location as a URI, `s3://bucket/prefix`."""
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def keys(self) -> tuple[str, str]:
        """IAM patterns for the location's keys: the prefix itself, and all keys below it."""
        return self.prefix, f"{self.prefix}/*"

    def overlaps(self, other: Location) -> bool:
        """Whether the two locations are equal, or one is below the other."""
        one, two = f"{self.prefix}/", f"{other.prefix}/"
        return self.bucket == other.bucket and (one.startswith(two) or two.startswith(one))
