"""Which class writes checkpoints, by Spark's version; the rest is tested on real sessions."""

import pytest

from kinesis_efo.driver.tuning import manager_class

pytestmark = pytest.mark.spark43
PACKAGE = "org.apache.spark.sql.execution.streaming"


@pytest.mark.parametrize(
    ("version", "package"),
    [
        ("4.0.2", PACKAGE),
        ("4.0.1-amzn-0", PACKAGE),
        ("4.1.0", f"{PACKAGE}.checkpointing"),
        ("4.3.0-SNAPSHOT", f"{PACKAGE}.checkpointing"),
        ("5.0.0", f"{PACKAGE}.checkpointing"),
    ],
)
def test_the_manager_class_fits_sparks_version(version: str, package: str) -> None:
    assert manager_class(version) == f"{package}.FileSystemBasedCheckpointFileManager"
