"""Scripts of faults: the same seed gives the same script, and together they cover every fault."""

from random import Random

from tests.emulator.script import BROKEN, EXCEPTIONS, FATAL_REFUSALS, ODD, REFUSALS, SLOW, generate


def test_the_same_seed_gives_the_same_script() -> None:
    assert generate(Random(7), 30, 4) == generate(Random(7), 30, 4) != generate(Random(8), 30, 4)


def test_script_is_ordered_in_time_and_names_its_shards() -> None:
    for seed in range(100):
        script = generate(Random(seed), 30, 4, fatal=True)
        times = [fault.at for fault in script]
        assert times == sorted(times)
        assert min(times) >= 0 and max(times) <= 30
        assert {fault.shard for fault in script} <= {None, 0, 1, 2, 3}


def test_two_hundred_scripts_hold_everything() -> None:
    faults = [fault for seed in range(200) for fault in generate(Random(seed), 30, 4, fatal=seed % 4 == 0)]
    assert {fault.kind for fault in faults} == {*BROKEN, *ODD, *SLOW, "refuse", "exception"}
    assert {fault.code for fault in faults if fault.kind == "refuse"} == {*REFUSALS, *FATAL_REFUSALS}
    assert {fault.code for fault in faults if fault.kind == "exception"} == {*EXCEPTIONS, "ResourceNotFoundException"}


def test_what_the_model_of_the_api_knows_is_scripted() -> None:
    """Scripts cover every error in botocore's model of SubscribeToShard, before and inside the stream."""
    from botocore.session import get_session

    operation = get_session().get_service_model("kinesis").operation_model("SubscribeToShard")
    refusals = {shape.name for shape in operation.error_shapes} - {"DryRunOperationException"}
    members = operation.output_shape.members["EventStream"].members
    in_stream = {shape.name for shape in members.values() if shape.metadata.get("exception")}
    assert refusals <= {code.split(":")[0] for code in (*REFUSALS, *FATAL_REFUSALS)}
    assert in_stream == {*EXCEPTIONS, "ResourceNotFoundException"}
