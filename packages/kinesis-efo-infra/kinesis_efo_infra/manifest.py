"""The manifest of an application, in Parameter Store or in S3."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from kinesis_efo_infra import checks, document
from kinesis_efo_infra.base import Part, account_of, environment_of, put, region_of, validate
from kinesis_efo_infra.cdk import (
    Construct,
    Fn,
    S3Object,
    S3ObjectOverrideProvider,
    S3ObjectOverrideProviderDefaultTags,
    SsmParameter,
)
from kinesis_efo_infra.consumer import StreamConsumer
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.grants import Grant, Grantee, grant
from kinesis_efo_infra.key import OWN, EncryptionKey, check_key, key_arn
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.regions import region_and_account
from kinesis_efo_infra.stream import Stream
from kinesis_efo_infra.table import LeaseTable

_BYTES: Final = {"standard": 4096, "advanced": 8192}
"""The size limit of a parameter's value in each tier, in bytes. Source: Systems Manager API reference, PutParameter, Value."""


class Manifest(Part):
    """An encrypted SSM parameter or S3 object that describes what an application reads. A job refers to it by its location.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        application: The application, as named in metrics and messages.
        table: The application's lease table.
        streams: Consumers that the application uses, or streams that it only polls, by the names used in options and offsets; these
            names cannot be changed later.
        environment: Name of the environment, such as `prod`, for metrics and messages; default: the name of the stack.
        name: Name of the parameter; default: `/kinesis-efo/<environment>/<application>`. The key of an S3 object is this name
            without the first `/`.
        bucket: Bucket that stores the manifest as an object, of any size; default: the manifest is a parameter.
        encryption_key: `own` (a customer key is declared), `aws-managed`, a `CustomerKey`, or the ARN of one.
        tier: Tier of the parameter: `standard` holds 4 KB; `advanced` holds 8 KB, and is billed.
        protected: Whether Terraform refuses to destroy the manifest's key. The manifest itself can be written again.
        tags: Tags of the manifest and its key, in addition to the provider's default tags.
        place: Terraform name of the resources; default: derived by CDKTF.

    Raises:
        ArgumentError: There are no streams, or an argument or the manifest's size is not accepted by Parameter Store (Systems
            Manager API reference, PutParameter).

    >>> manifest = Manifest(stack, "manifest", application="lake", table=table, streams={"orders": lake})
    >>> manifest.location
    'ssm:///kinesis-efo/streaming/lake'
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        application: str,
        table: LeaseTable,
        streams: Mapping[str, StreamConsumer | Stream],
        environment: str | None = None,
        name: str | None = None,
        bucket: str | None = None,
        encryption_key: EncryptionKey = OWN,
        tier: str = "standard",
        protected: bool = False,
        tags: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        owner = f"Manifest {id!r}"
        checks.text(owner, "application", application, checks.KINESIS_NAME, "choose another name")
        environment = environment_of(scope, owner, environment)
        name = name or f"/kinesis-efo/{environment}/{application}"
        checks.text(owner, "name", name, checks.PARAMETER_NAME, "give a full name that begins with a '/'")
        checks.one_of(owner, "tier", tier, ("standard", "advanced"), "standard holds 4 KB, advanced 8 KB")
        if bucket is not None:
            checks.text(owner, "bucket", bucket, checks.BUCKET_NAME, "give the name of a bucket, not its ARN")
        check_key(owner, encryption_key)
        if not streams:
            raise ArgumentError(f"{owner}: streams must have at least one; got {streams!r}: it would read nothing")
        write = partial(document.manifest, application=application, environment=environment)
        if bucket is None:
            # If the region is unknown, assume one with the shortest name, so that the check never overestimates the size.
            region = region_of(scope) or "eu-west-1"
            known = write(
                region=region,
                table_name=table.declared_name or "",
                table_arn=f"arn:aws:dynamodb:{region}:{'0' * 12}:table/{table.declared_name or ''}",
                streams={key: _literal(each, region) for key, each in streams.items()},
            )
            _check_size(owner, tier, known)
        super().__init__(scope, id, tags)
        self._streams = dict(streams)
        validate(self, self._elsewhere)
        for each in streams.values():
            if isinstance(each, StreamConsumer):
                each.read_by(f"{application} in {environment}")
        account = account_of(self)
        content = write(
            region=account.region,
            table_name=table.name,
            table_arn=table.arn,
            streams={key: _reference(each) for key, each in streams.items()},
        )
        self._key_arn = key_arn(
            self,
            encryption_key,
            alias=f"kinesis-efo/manifest{name}",
            description=f"kinesis-efo manifest {name}",
            protected=protected,
            place=place,
        )
        # Do not use json.dumps: the values of references are unknown until Terraform runs, and only Terraform can escape them.
        text = Fn.jsonencode(content)
        # Do not use references here: policies that contain the ARN would wait for the manifest unnecessarily.
        if bucket is None:
            self._location, self._arn = f"ssm://{name}", account.arn("ssm", f"parameter{name}")
            self._declared = f"ssm://{self._parameter(name, text, tier, place).name}"
        else:
            key = name.removeprefix("/")
            self._location, self._arn = f"s3://{bucket}/{key}", f"arn:{account.partition}:s3:::{bucket}/{key}"
            self._declared = f"s3://{bucket}/{self._object(bucket, key, text, place).key}"
        self._in_s3 = bucket is not None

    def _elsewhere(self) -> Iterator[str]:
        here = region_of(self)
        for key, each in self._streams.items():
            arn = each.stream.arn if isinstance(each, StreamConsumer) else each.arn
            if checks.is_token(arn):
                continue
            region, _ = region_and_account(arn)
            # An application reads all streams of its manifest in one region.
            if here is not None and region != here:
                yield (
                    f"stream {key!r} must be in {here}, where the manifest is; got {arn}: declare an application in {region} "
                    "for it"
                )

    @property
    def location(self) -> str:
        """The value of a job's `manifest` option."""
        return self._location

    @property
    def declared_location(self) -> str:
        """The location as a Terraform reference, so that resources that use it are created after the manifest."""
        return self._declared

    def _parameter(self, name: str, text: str, tier: str, place: Place | None) -> SsmParameter:
        parameter = SsmParameter(
            self,
            "parameter",
            name=name,
            description=f"kinesis-efo manifest {name}",
            type="SecureString",
            key_id=self._key_arn,
            tier=tier.capitalize(),
            value=text,
        )
        self.node.default_child = put(parameter, place)
        return parameter

    def _object(self, bucket: str, key: str, text: str, place: Place | None) -> S3Object:
        # Disable the provider's default tags: they may be more than the ten tags that S3 allows for an object.
        untagged = S3ObjectOverrideProvider(default_tags=S3ObjectOverrideProviderDefaultTags(tags={}))
        declared = S3Object(
            self,
            "object",
            bucket=bucket,
            key=key,
            content=text,
            content_type="application/json",
            server_side_encryption="aws:kms",
            kms_key_id=self._key_arn,
            override_provider=untagged,
        )
        self.node.default_child = put(declared, place)
        return declared

    def grant_read(self, grantee: Grantee) -> Grant:
        """Allow a grantee to load the manifest."""
        return grant(
            self, "manifest", grantee, lambda to: to.read_manifest(self._arn, self._key_arn, in_s3=self._in_s3)
        )


def _check_size(owner: str, tier: str, known: dict[str, Any]) -> None:
    """Raise during synthesis if a manifest is too long for a parameter of the tier, even if its tokens have empty values."""
    size, limit = len(json.dumps(known, separators=(",", ":")).encode()), _BYTES[tier]
    if size > limit:
        larger = "give tier='advanced', which holds 8 KB, or " if tier == "standard" else "give "
        raise ArgumentError(
            f"{owner}: streams must fit a {tier} parameter of {limit} bytes; got {len(known['streams'])} streams, which take {size} "
            f"at least: {larger}a `bucket`, in which a manifest may be of any size"
        )


def _literal(read: StreamConsumer | Stream, region: str) -> document.StreamRef:
    """Return a stream's shortest possible manifest entry, for the size check: values of tokens are left out."""
    stream = read.stream if isinstance(read, StreamConsumer) else read
    name = stream.declared_name or ""
    arn = f"arn:aws:kinesis:{region}:{'0' * 12}:stream/{name}"
    if not isinstance(read, StreamConsumer):
        return document.StreamRef(name, arn, None)
    return document.StreamRef(name, arn, f"{arn}/consumer/{read.name or ''}:{'0' * 10}")


def _reference(read: StreamConsumer | Stream) -> document.StreamRef:
    if isinstance(read, StreamConsumer):
        return document.StreamRef(read.stream.name, read.stream.arn, read.arn)
    return document.StreamRef(read.name, read.arn, None)
