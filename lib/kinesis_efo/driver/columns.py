"""Helpers for rows: parse JSON into columns, compare positions in a shard, and append each micro-batch to a table only once."""

from __future__ import annotations

from functools import reduce
from math import inf
from operator import and_
from typing import Final
from uuid import uuid4

from pyspark.sql import Column, DataFrame, DataFrameWriter
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.types import DataType, StructType

from kinesis_efo.errors import ConfigurationError

_DATE: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = rf"{_DATE}[T ][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}([.][0-9]{{1,6}})?"
_NUMBER: Final = "-?[0-9]+([.][0-9]+)?"
_ROUNDED: Final = r"[:\[,]\s*-?(?=[0-9.]{17}|[0-9]{16}[eE])[0-9]+([.][0-9]|[eE])"
"""Pattern for JSON numbers of more than 15 digits, which Spark would round."""
# Pattern of the strings accepted for each type. Spark's own conversions accept more strings and silently change values: "1,50" becomes
# 150.00, and a date becomes a timestamp at midnight.
_FORMS: Final[tuple[tuple[type[DataType], str], ...]] = (
    (T.BooleanType, "true|false"),
    (T.IntegralType, "-?[0-9]+"),
    # Accept an exponent: Spark parses a JSON number as a double (exact to 15 digits), and formats ten million or more with an exponent.
    (T.DecimalType, rf"{_NUMBER}|-?[0-9][.][0-9]{{1,14}}E-?[0-9]+"),
    (T.FractionalType, rf"{_NUMBER}(E-?[0-9]+)?"),
    (T.DateType, _DATE),
    (T.TimestampType, rf"{_TIME}(Z|[+-][0-9]{{2}}:?[0-9]{{2}})"),
    (T.TimestampNTZType, _TIME),
)


def from_json(records: DataFrame, schema: str | StructType, *, malformed: str = "malformed") -> DataFrame:
    """Parse JSON objects in column `data` into columns, and preserve the bytes of malformed records.

    A record is malformed if it is not exactly one JSON object in UTF-8, or if a value does not match its type exactly: `"1,50"` or `1.505`
    for a `decimal(9, 2)`, `2027-01-31` or a time without a zone for a `timestamp`. Such a value becomes null. A missing field becomes null
    too, but is not malformed. Decimals may be strings in JSON, and should be if they have more than 15 digits.

    Args:
        records: Rows of this library's source, or any others with a column `data`.
        schema: The fields, such as `"id string, amount decimal(12, 2), lines array<struct<sku: string, count: int>>"`.
        malformed: Name of the column with the bytes of malformed records; null for other records.

    Returns:
        The fields of `schema`, the other columns of `records`, and `malformed`.

    Raises:
        ConfigurationError: A type is not supported, or two columns have the same name.

    ```python
    orders = kinesis_efo.from_json(records, "id string, amount decimal(12, 2), placed timestamp")
    ```
    """
    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(wanted, StructType):
        raise ConfigurationError(f"from_json: schema must be fields such as 'id string, count int'; got {schema!r}")
    others = [name for name in records.columns if name != "data"]
    if twice := sorted(({malformed} | set(others)) & set(wanted.names)):
        raise ConfigurationError(f"from_json: {', '.join(map(repr, twice))} would appear twice; rename it in `records`")
    text = F.col("data").cast("string")
    parsed = records.select("data", *others, _objects(text, wanted).alias("_objects"))
    parts = [(field.name, _exactly(F.get("_objects", F.lit(0))[field.name], field.dataType)) for field in wanted]
    whole = (F.size("_objects") == 1) & F.get("_objects", F.lit(0)).isNotNull() & _is_one(text)
    # Reject bytes that are not UTF-8, which Spark replaces, and decimals of more than 15 digits, which Spark rounds.
    whole &= F.expr("is_valid_utf8(string(data))")
    if "decimal" in wanted.simpleString():
        whole &= ~text.rlike(_ROUNDED)
    fits = F.coalesce(reduce(and_, (each for _, (_, each) in parts), whole), F.lit(False))
    columns = [value.alias(name) for name, (value, _) in parts]
    return parsed.select(*columns, *others, F.when(~fits, F.col("data")).alias(malformed))


def _objects(text: Column, schema: StructType) -> Column:
    """Parse a string as an array of JSON objects with string fields. Adds the array's brackets, so that a second object is not ignored."""
    fields = StructType([T.StructField(name, T.StringType()) for name in schema.names])
    return F.from_json(F.concat(F.lit("["), text, F.lit("]")), T.ArrayType(fields))


def _is_one(text: Column) -> Column:
    """Whether a string is exactly one JSON value. Spark ignores text after a value. Without such text, an appended value is parsed."""
    end = uuid4().hex
    found = F.from_json(F.concat(F.lit("["), text, F.lit(f',"{end}"]')), T.ArrayType(T.StringType()))
    return (F.size(found) == 2) & (F.get(found, F.lit(1)) == end)


def _exactly(text: Column, kind: DataType) -> tuple[Column, Column]:
    """Convert the text of a JSON value to a type. Return the result, and whether the value matches the type exactly."""
    value, fits = text, F.lit(True)  # for strings, any value matches
    match kind:
        case StructType():
            found = _objects(text, kind)
            one = F.get(found, F.lit(0))
            parts = [(field.name, _exactly(one[field.name], field.dataType)) for field in kind]
            value = F.when(one.isNotNull(), F.struct(*(each.alias(name) for name, (each, _) in parts)))
            fits = reduce(
                and_, (each for _, (_, each) in parts), (F.size(found) == 1) & one.isNotNull() & _is_one(text)
            )
        case T.ArrayType():
            found = F.from_json(text, T.ArrayType(T.StringType()))
            value = F.transform(found, lambda each: _exactly(each, kind.elementType)[0])
            fits = found.isNotNull() & _is_one(text) & F.forall(found, lambda each: _exactly(each, kind.elementType)[1])
        case _ if not isinstance(kind, T.StringType):
            form = next((form for each, form in _FORMS if isinstance(kind, each)), None)
            if form is None:
                raise ConfigurationError(
                    f"from_json: the type {kind.simpleString()} is not possible; read it as a string"
                )
            good = text.rlike(rf"^({form})\z")  # not `$`, which also matches before a final line break
            if isinstance(kind, T.DecimalType):
                # Reject values with more decimal places than the type, which Spark would round, unless the additional digits are 0.
                wide = T.DecimalType(38, min(37, 38 - kind.precision + kind.scale))
                exact = text.rlike("E") & (text.try_cast(wide) == text.try_cast(kind))
                good &= exact | text.rlike(rf"^-?[0-9]+([.][0-9]{{0,{kind.scale}}}0*)?\z")
            elif isinstance(kind, T.FractionalType):
                good &= F.abs(text.try_cast(kind)) < F.lit(inf)
            value = F.when(good, text.try_cast(kind))
            fits = value.isNotNull()
    return value, text.isNull() | F.coalesce(fits, F.lit(False))


def position() -> Column:
    """Return a row's position in its shard, as a string that sorts in the order of the records.

    Use it to find the newest record of a key, or to compare records in a MERGE. Positions of one partition key stay comparable across
    splits and merges, if producers do not set explicit hash keys.

    ```python
    newest = rows.groupBy("partitionKey").agg(F.max_by("data", kinesis_efo.position()))
    ```
    """
    # Sequence numbers exceed 64 bits. As strings of equal length, they sort like numbers.
    return F.concat(F.lpad("sequenceNumber", 129, "0"), F.lpad(F.col("subSequenceNumber").cast("string"), 20, "0"))


def write_once(rows: DataFrame, batch_id: int, name: str = "") -> DataFrameWriter:
    """Return a writer that appends a micro-batch to a Delta table once: if the table already contains the micro-batch, it is skipped.

    Use it in `foreachBatch` of a classic session. It sets Delta's `txnAppId` to the query's id, so that a query with a new checkpoint, whose
    micro-batches are numbered from 0 again, does not skip records.

    Args:
        rows: The rows to write, derived from the DataFrame that `foreachBatch` passes.
        batch_id: The micro-batch number that `foreachBatch` passes.
        name: Distinguishes several writes of one query to the same table. Without a name, the second write would be skipped.

    Raises:
        ConfigurationError: This is not called in `foreachBatch` of a classic session.

    ```python
    def append(rows, batch_id):
        kinesis_efo.write_once(rows, batch_id).save("s3://lake/orders")
    ```
    """
    context = getattr(rows.sparkSession, "sparkContext", None)
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    # Also compare the micro-batch number: in a thread pool, a thread may still have the local properties of another query.
    if context is None or query is None or context.getLocalProperty("streaming.sql.batchId") != str(batch_id):
        raise ConfigurationError(
            "write_once: the query is unknown here; call it in foreachBatch of a classic session, or set Delta's options txnAppId and "
            "txnVersion yourself"
        )
    writer = rows.write.format("delta").mode("append").option("txnAppId", f"{query}-{name}" if name else query)
    return writer.option("txnVersion", batch_id)
