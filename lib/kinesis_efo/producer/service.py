"""A producer's calls to Kinesis: PutRecords (with request bodies encoded by msgspec), ListShards and DescribeStreamSummary."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import botocore
import msgspec
from aiobotocore.config import AioConfig
from botocore.parsers import ResponseParserError
from pybase64 import b64encode

from kinesis_efo import __version__
from kinesis_efo.arns import STREAM_ARN, STREAM_NAME
from kinesis_efo.aws import AsyncClients, SyncClients, pages_of, token_only
from kinesis_efo.aws_errors import Cause, cause_of, describe
from kinesis_efo.credentials import SdkSession, setting_of
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.options import AwsSettings
from kinesis_efo.producer.aggregation import Parcel
from kinesis_efo.producer.queue import Result
from kinesis_efo.producer.routing import DEFAULT_RECORD_BYTES, HashRange, StreamTraits
from kinesis_efo.raw_bodies import RAW_BODY, keep_answers, send_as_is
from kinesis_efo.records.distribution import Distribution, distribution_of

logger = logging.getLogger(__name__)

_SMALL = 400
"""Parcels below this size in bytes are encoded by msgspec's base64. pybase64 is four times as fast, but requires a call per parcel."""


class _PutRecordsEntry(msgspec.Struct, gc=False, omit_defaults=True):
    data: bytes | msgspec.Raw = msgspec.field(name="Data")
    key: str = msgspec.field(name="PartitionKey")
    hash_key: str | None = msgspec.field(name="ExplicitHashKey", default=None)


class _PutRecordsBody(msgspec.Struct):
    records: list[Result] = msgspec.field(name="Records")


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_PutRecordsBody)


class KinesisService:
    """Calls Kinesis with two aiobotocore clients: `data` for PutRecords (without retries or validation), and `control` for other calls."""

    def __init__(self, data: Any, control: Any, stream: str) -> None:
        self._data = data
        self._control = control
        self._stream = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        send_as_is(data, "PutRecords", "Records")
        keep_answers(data, "PutRecords")

    async def put_records(self, parcels: Sequence[Parcel], *, keyed: bool) -> Sequence[Result]:
        """Send one PutRecords request without retries. Return one result per parcel, in order. Set `keyed` if keys select the shard;
        otherwise, explicit hash keys are not sent."""
        entries = [
            _PutRecordsEntry(
                parcel.data if parcel.size < _SMALL else msgspec.Raw(b'"%b"' % b64encode(parcel.data)),
                parcel.key,
                parcel.hash_key if keyed else None,
            )
            for parcel in parcels
        ]
        body = _encoder.encode({**self._stream, "Records": entries})
        answer = await self._data.put_records(**self._stream, Records=body)
        try:
            results = _decoder.decode(answer[RAW_BODY]).records
        except (KeyError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ResponseParserError(f"the PutRecords response cannot be decoded: {error}") from None
        if len(results) != len(parcels):
            raise ResponseParserError(f"PutRecords answered {len(results)} results for {len(parcels)} records")
        if not all(result.shard or result.code for result in results):
            raise ResponseParserError("PutRecords answered neither a shard nor an error for a record")
        return results

    async def shards(self) -> list[HashRange]:
        """List the stream's shards, including closed ones."""
        pages = pages_of("ListShards", self._control.list_shards, self._stream, token_only)
        return [_shard(shard) async for page in pages for shard in page["Shards"]]

    async def traits(self) -> StreamTraits:
        try:
            answer = await self._control.describe_stream_summary(**self._stream)
        except Exception as error:
            if cause_of(error) is not Cause.DENIED:
                raise
            logger.info(
                "no permission kinesis:DescribeStreamSummary (%s): records may have up to 1 MiB", describe(error)
            )
            denied = f"the role has no permission kinesis:DescribeStreamSummary ({describe(error)})"
            return StreamTraits(distribution=Distribution.UNKNOWN, unknown=denied)
        summary = answer["StreamDescriptionSummary"]
        kibibytes = summary.get("MaxRecordSizeInKiB")
        distribution = distribution_of(self._control, summary)
        return StreamTraits(
            int(kibibytes) << 10 if kibibytes else DEFAULT_RECORD_BYTES,
            distribution,
            f"botocore {botocore.__version__} does not know it; upgrade boto3 and aiobotocore"
            if distribution is Distribution.UNKNOWN
            else "",
        )


@asynccontextmanager
async def connect(
    stream: str, aws: AwsSettings, connections: int, session: SdkSession | None = None
) -> AsyncIterator[KinesisService]:
    """Connect to Kinesis for one stream. `connections` is the maximum number of requests in flight."""
    if session is not None and (aws.profile or aws.credential_provider):
        raise ConfigurationError("give a session, or a profile or credential_provider in AwsSettings, but not both")
    clients = AsyncClients(aws, region_of(stream, aws, session), given=session)
    once = AioConfig(
        retries={"total_max_attempts": 1},
        max_pool_connections=connections,
        parameter_validation=False,
        # Set a fixed user agent: botocore would build one for every request, which costs more than signing the request.
        user_agent=f"kinesis-efo/{__version__} Botocore/{botocore.__version__}",
    )
    async with await clients.open("kinesis", once) as data, await clients.open("kinesis") as control:
        yield KinesisService(data, control, stream)


def region_of(stream: str, aws: AwsSettings, session: SdkSession | None = None) -> str:
    """Validate a stream's name or ARN, and return its region: from `aws`, the ARN, the session, or the SDK's configuration."""
    arn = STREAM_ARN.fullmatch(stream)
    if not arn and not STREAM_NAME.fullmatch(stream):
        raise ConfigurationError(
            f"the stream must be a name or an ARN such as arn:aws:kinesis:eu-west-1:123456789012:stream/orders; got {stream!r}"
        )
    if arn and aws.region and aws.region != arn["region"]:
        raise ConfigurationError(
            f"stream {stream} is in region {arn['region']!r}, but the region given is {aws.region!r}"
        )
    in_session = None if session is None else setting_of(session, "region")
    region = aws.region or (arn["region"] if arn else SyncClients(aws, in_session).region)
    if not region:
        raise ConfigurationError(
            f"no AWS region for stream {stream!r}: give its ARN, set kinesis-efo option 'region' or the environment's AWS_REGION"
        )
    return region


def _shard(shard: dict[str, Any]) -> HashRange:
    keys = shard["HashKeyRange"]
    numbers = shard["SequenceNumberRange"]
    still_open = "EndingSequenceNumber" not in numbers
    first = numbers["StartingSequenceNumber"]
    return HashRange(shard["ShardId"], int(keys["StartingHashKey"]), int(keys["EndingHashKey"]), still_open, first)
