"""Keep the newest record of each partition key in a table of a database.

    spark-submit examples/upsert.py database=newest.db checkpoint=file:///var/lib/checkpoints/newest \
        manifest=ssm:///kinesis-efo/dev/lake streams=customers

All other arguments are options of the source (docs/options.md) as NAME=VALUE. The database is SQLite. PostgreSQL has
the same statement. A repeated micro-batch is harmless, because a record replaces only an older one. See
docs/how-to/upserts.md for key="get_json_object(string(data), '$.id')" and version. SIGTERM ends the program.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kinesis_efo import job, position, read_stream

TABLE = "create table if not exists newest (key text not null primary key, data blob, place text not null)"
UPSERT = """
insert into newest values (?, ?, ?) on conflict (key)
do update set data = excluded.data, place = excluded.place where excluded.place > newest.place
"""

options: dict[str, Any] = dict(argument.split("=", 1) for argument in sys.argv[1:])
database, checkpoint = options.pop("database"), options.pop("checkpoint")
key, version = options.pop("key", "partitionKey"), options.pop("version", None)


def upsert(rows: DataFrame, batch_id: int) -> None:
    """Write a micro-batch in one transaction."""
    place = position()
    if version is not None:
        place = F.expr(f"if(string({version}) rlike '^[0-9]{{1,38}}$', lpad(string({version}), 38, '0'), null)")
    of_one_key = rows.withColumns({"key": F.expr(key), "place": place}).groupBy("key")
    # Without `every`, a record without a version would be left out beside others of its key.
    newest = of_one_key.agg(F.max_by("data", "place"), F.when(F.every(F.col("place").isNotNull()), F.max("place")))
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(TABLE)
        connection.executemany(UPSERT, newest.toLocalIterator())


spark = SparkSession.builder.appName("upsert").getOrCreate()
with job(spark):
    records = read_stream(spark, **options)
    records.writeStream.foreachBatch(upsert).option("checkpointLocation", checkpoint).start().awaitTermination()
