"""Scripts of faults: the same seed gives the same script, and together they cover every fault."""

from random import Random

from tests.emulator.script import BROKEN, EXCEPTIONS, FATAL_REFUSALS, ODD, REFUSALS, SLOW, generate


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
