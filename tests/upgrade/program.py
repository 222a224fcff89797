"""One run of a query by whichever version of the library PYTHONPATH names: writes the rows of each micro-batch to a file of its own.

Takes one argument, JSON. Uses nothing of the library but the data source, so that a version of any age can run it. Ends once so many rows
were written and Spark has noted that their micro-batches are done, and says which library that was.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import kinesis_efo


def main(config: dict[str, Any]) -> None:
    builder = SparkSession.builder.master("local[2]").appName("upgrade")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    checkpoint, output = Path(config["checkpoint"]), Path(config["output"])

    def write(frame: DataFrame, batch: int) -> None:
        numbers = [int(row.data) for row in frame.select("data").collect()]
        (output / f"{batch}.json").write_text(json.dumps(numbers))

    def rows() -> int:
        return sum(len(json.loads(file.read_text())) for file in output.glob("*.json"))

    def log(name: str) -> set[str]:
        return {file.name for file in (checkpoint / name).glob("*") if file.name.isdigit()}

    def run() -> str | None:
        stream = spark.readStream.format("kinesis-efo").options(**config["options"]).load()
        query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()
        while query.isActive and not (rows() >= config["until"] and log("offsets") == log("commits")):
            time.sleep(0.2)
        error = query.exception()
        query.stop()
        return None if error is None else str(error)

    error = run()
    for _ in range(5):
        # Spark gives the reader's process 10 s to come up, which is too short on a busy machine. Nothing of the library has run then.
        if error is None or "failed to connect back" not in error:
            break
        error = run()
    if error is not None:
        raise SystemExit(f"the query failed: {error}")
    spark.stop()
    print(kinesis_efo.__file__)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
