"""The settings of Spark that a job is submitted with, and what identifies it."""

import shlex

import pytest

from kinesis_efo.errors import ConfigurationError, UsageError
from kinesis_efo.units import parse_size
from kinesis_efo_tools.emr.job import (
    Job,
    job_name,
    lease_timeout,
    read_settings,
    read_settings_text,
    source_option,
    spark_settings,
)
from kinesis_efo_tools.emr.target import TargetKind
from tests.support.messages import raises

ARCHIVE = "s3://artifacts/environments/0a/environment.tar.gz"
MIB = 1 << 20


def settings(kind: TargetKind = TargetKind.SERVERLESS, *arguments: str, **given: str) -> dict[str, str]:
    return spark_settings(
        kind, ARCHIVE, arguments, {f"spark.{name.replace('_', '.')}": value for name, value in given.items()}
    )


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        (TargetKind.CLUSTER, "spark.yarn.appMasterEnv.PYSPARK_"),
        (TargetKind.SERVERLESS, "spark.emr-serverless.driverEnv.PYSPARK_"),
        (TargetKind.EKS, "spark.pyspark."),
    ],
)
def test_driver_and_executors_run_the_archives_python(kind: TargetKind, prefix: str) -> None:
    found = settings(kind)
    assert found["spark.archives"] == f"{ARCHIVE}#environment"
    names = ("python", "driver.python") if kind is TargetKind.EKS else ("PYTHON", "DRIVER_PYTHON")
    for name in (*(prefix + each for each in names), "spark.executorEnv.PYSPARK_PYTHON"):
        assert found[name] == "./environment/bin/python"


@pytest.mark.parametrize("kind", sorted(set(TargetKind) - {TargetKind.GLUE}))
def test_settings_of_batch_jobs_are_off(kind: TargetKind) -> None:
    found = settings(kind)
    assert (found["spark.speculation"], found["spark.dynamicAllocation.enabled"]) == ("false", "false")
    assert any("rolling" in name or "rotation" in name for name in found) is (kind is not TargetKind.SERVERLESS)
    wanted = settings(kind, executor_instances="9", speculation="true")
    assert (wanted["spark.executor.instances"], wanted["spark.speculation"]) == ("9", "true"), "the user's win"


@pytest.mark.parametrize(
    "option", [["--option", "bufferBytes=1g"], ["--option=bufferbytes=1g"], ["--option", "BUFFERBYTES=1024m"]]
)
def test_drivers_overhead_has_room_for_buffer_and_heap(option: list[str]) -> None:
    usual, large = (parse_size(settings(TargetKind.EKS, *each)["spark.driver.memoryOverhead"]) for each in ([], option))
    assert usual > (256 + 512) * MIB
    assert large - usual == (1024 - 256) * MIB * 3 // 2
    heap = parse_size(settings(TargetKind.EKS, driver_memory="14g")["spark.driver.memoryOverhead"])
    assert heap - usual == 1024 * MIB
    assert settings(driver_memory="4096") | {"spark.driver.memory": ""} == settings() | {"spark.driver.memory": ""}


def test_executors_have_room_for_fetchers() -> None:
    def overhead(*arguments: str, **given: str) -> int:
        return parse_size(settings(TargetKind.EKS, *arguments, **given)["spark.executor.memoryOverhead"])

    assert "spark.executor.memoryOverhead" not in settings()
    one, two, many = (overhead("--option", f"fetchers={number}", kinesisEfo_shards="600") for number in (1, 2, 7))
    each, less = (256 + 200 + 600 * 400 // 1024) * MIB, (256 + 200 + 100 * 400 // 1024) * MIB
    assert one > each
    assert two - one == each, "the other's, where an executor is lost"
    assert many - two == 4 * less - 2 * each, (
        "no executor runs more than it has cores, and each has its part of the shards"
    )
    buffers = ("--option", "bufferBytes=1g")
    shards = {"kinesisEfo_shards": "600"}
    assert overhead("--option", "fetchers=2", *buffers, **shards) - two == 2 * (1024 - 256) * MIB
    assert overhead("--option", "fetchers=2", executor_instances="9", **shards) == two
    assert overhead("--option", "fetchers=2", executor_memoryOverhead="9g") == 9 * 1024 * MIB


def test_memory_follows_the_number_of_shards() -> None:
    def overhead(where: str, shards: str, *arguments: str) -> int:
        given = settings(TargetKind.EKS, *arguments, kinesisEfo_shards=shards)
        assert given["spark.kinesisEfo.shards"] == shards
        return parse_size(given[f"spark.{where}.memoryOverhead"])

    fetchers = ("--option", "fetchers=3")
    assert overhead("driver", "2024") - overhead("driver", "1000") == 400 * MIB
    assert overhead("executor", "3048", *fetchers) - overhead("executor", "1000", *fetchers) == 3 * 400 * MIB
    assert overhead("driver", "1000") == parse_size(settings(TargetKind.EKS)["spark.driver.memoryOverhead"])
    assert overhead("driver", "8000", *fetchers) < overhead("driver", "1000"), "who plans only has no buffer"
    with pytest.raises(UsageError, match=r"spark.kinesisEfo.shards .* got 'many'"):
        overhead("driver", "many")


def test_fetchers_that_leave_no_core_are_refused() -> None:
    with raises(
        ConfigurationError,
        "option fetchers is 8, and 2 executors with 4 cores have 8 cores: each fetcher keeps one, and micro-batches need "
        "at least one more. Take fewer fetchers, or more of --conf spark.executor.instances",
    ):
        settings(TargetKind.EKS, "--option", "fetchers=8")
    assert settings(TargetKind.EKS, "--option", "fetchers=8", executor_instances="3")
    with raises(UsageError, "--conf spark.executor.cores must be a whole number, at least 1; got 'all'"):
        settings(TargetKind.EKS, "--option", "fetchers=8", executor_cores="all")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"spark.archives": "s3://mine"}, "--conf spark.archives is set by kinesis-efo itself: leave it out"),
        ({"spark.kinesisEfo.stopMarker": "s3://mine"}, "--conf spark.kinesisEfo.stopMarker is set ..."),
        (
            {"executor.instances": "4"},
            r"--conf 'executor.instances': the name of a setting must match spark\.[A-Za-z0-9_./:-]+; correct it",
        ),
        ({"spark.app.name": ""}, "--conf spark.app.name=: EMR takes no empty value; leave the setting out"),
        ({"spark.app.name": " "}, "--conf spark.app.name= : EMR takes no empty value; ..."),
        # Attacks: each would be more arguments of spark-submit.
        *(
            ({name: "1"}, f"--conf {name!r}: the name of ...")
            for name in (
                "spark.a=1 --py-files s3://evil/a.py --conf spark.b",
                "spark.a\t--jars",
                "spark.'a",
                "spark.a\n",
                'spark."a',
                "spark.a\\",
                "spark.a=b",
                "spark.",
            )
        ),
        ({"spark.driver.memory": "lots"}, "--conf spark.driver.memory must be a size such as 4g; got 'lots'"),
    ],
)
def test_wrong_setting_is_refused(given: dict[str, str], said: str) -> None:
    with raises(UsageError, said):
        spark_settings(TargetKind.SERVERLESS, ARCHIVE, [], given)


def test_options_of_the_source_are_read_or_refused() -> None:
    with raises(ConfigurationError, "option bufferBytes must be a size such as 256m; got 'lots'"):
        settings(TargetKind.EKS, "--option", "bufferBytes=lots")
    for text in ("soon", "10ms"):
        with raises(ConfigurationError, f"option leaseTimeout must be a duration such as 10s; got '{text}'"):
            lease_timeout(["--option", f"leaseTimeout={text}"])
    assert lease_timeout([]) == lease_timeout(["--option", "leaseTimeout=10"]) == 10
    assert lease_timeout(["--output", "s3://lake", "--option", "leaseTimeout=1m"]) == 60
    assert source_option(["--leaseTimeout", "1m"], "leaseTimeout") is None


def test_names_of_runs_fit_and_differ() -> None:
    assert job_name("dev", "a" * 40) == f"kinesis-efo-dev-{'a' * 40}"
    names = [job_name("dev", f"{'a' * 100}{number}") for number in range(2)]
    assert (list(map(len, names)), names[0] != names[1]) == ([64, 64], True)


def job(**spark: str) -> Job:
    return Job(
        name="n", program="s3://p", arguments=[], role_arn=None, release_label="", logs=None, logs_key_arn=None,
        fingerprint="f", token="t", spark=settings(TargetKind.EKS, **spark),
    )  # fmt: skip


def test_settings_are_read_back_as_they_were_passed() -> None:
    assert read_settings(["spark-submit", *job().spark_submit(), "s3://p"]) == settings(TargetKind.EKS)
    assert shlex.split(job().spark_submit_text()) == job().spark_submit()
    assert job().spark_defaults() == {}
    assert read_settings_text("--conf 'of someone else") == {}


@pytest.mark.parametrize("value", ["-Da=1 -Db=2", """-Dtext='a "b" c'""", "a\\b", "tab\there"])
def test_any_value_reaches_spark_whole(value: str) -> None:
    made, name = job(driver_extraJavaOptions=value), "spark.driver.extraJavaOptions"
    assert read_settings(["spark-submit", *made.spark_submit(), "s3://p"])[name] == value
    # In the string, of which EMR does not say how it is split, there are only the others.
    assert read_settings_text(made.spark_submit_text()) == settings(TargetKind.EKS)
    (defaults,) = made.spark_defaults()["applicationConfiguration"]
    assert defaults == {"classification": "spark-defaults", "properties": {name: value}}
