"""The streams that a query of the sink writes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from kinesis_efo.arns import STREAM_ARN, STREAM_NAME
from kinesis_efo.aws import SyncClients
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import OptionsError, RecordRefusedError
from kinesis_efo.manifest import load_manifest
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import Patience
from kinesis_efo.producer.service import region_of
from kinesis_efo.spark.sink_options import SinkOptions


@dataclass(frozen=True, slots=True)
class Targets:
    """The streams that rows may go to.

    Attributes:
        default: The stream of rows that name none; None if every row must name one.
        arns: ARNs by logical name; None without a manifest, where rows hold the streams' own names or ARNs.
        source: Where the names came from, for messages.
    """

    default: str | None
    arns: Mapping[str, str] | None
    source: str

    @classmethod
    def of(cls, options: SinkOptions, *, named_by_rows: bool) -> Targets:
        """Find the streams that the options name. Loads the manifest if the options name one.

        Args:
            options: The sink's options.
            named_by_rows: Whether the DataFrame has a column `stream`.

        Raises:
            ManifestError: The manifest cannot be loaded.
            ConfigurationError: The stream is not a name or ARN, or no region is known.
            OptionsError: Neither the options nor the rows name a stream.
        """
        if options.manifest is None:
            if options.stream is not None:
                region_of(options.stream, options.aws)
            elif not named_by_rows:
                raise OptionsError(["kinesis-efo sink needs option 'stream' or 'manifest', or a column 'stream'"])
            return cls(options.stream, None, "option 'stream'")
        load = partial(load_manifest, options.manifest, SyncClients(options.aws))
        manifest = Patience(RetrySettings(), SystemClock()).load(options.manifest, load)
        arns = {name: stream.stream_arn for name, stream in manifest.streams.items()}
        names = ", ".join(map(repr, sorted(arns)))
        default = options.stream
        if default is None and len(arns) == 1:
            (default,) = arns
        if default is None and not named_by_rows:
            raise OptionsError(
                [f"kinesis-efo sink option 'stream' must be one of {names} (manifest {manifest.source})"]
            )
        if default is not None and default not in arns:
            raise OptionsError(
                [
                    f"kinesis-efo sink option 'stream' must be one of {names} (manifest {manifest.source}); got {default!r}"
                ]
            )
        return cls(default, arns, f"manifest {manifest.source}")

    def target_of(self, name: str | None) -> str:
        """The stream, as its producer takes it, of rows that name a stream; null or an empty name is the default.

        Raises:
            RecordRefusedError: There is no such stream; the message is for behind "row 7 of this task".
        """
        wanted = name or self.default
        if wanted is None:
            raise RecordRefusedError("has null in column 'stream', and there is no default; set option 'stream'")
        if self.arns is not None:
            if wanted not in self.arns:
                names = ", ".join(map(repr, sorted(self.arns)))
                raise RecordRefusedError(f"names stream {wanted!r}; {self.source} has {names}")
            return self.arns[wanted]
        if not (STREAM_ARN.fullmatch(wanted) or STREAM_NAME.fullmatch(wanted)):
            raise RecordRefusedError(f"names stream {wanted!r}, which is neither a stream's name nor its ARN")
        return wanted
