"""Each scenario, each promise and each fact about Kinesis has a test."""

import re

from scripts.scenarios import TESTS, failures, invariants, marked, scenarios, shown


def test_each_scenario_and_promise_has_a_test() -> None:
    numbers = [number for area in scenarios().values() for number in area]
    rows = [name for section in failures().values() for name in section]
    assert numbers == [str(number) for number in range(1, 92)]
    assert len(rows) >= 25
    assert len(invariants()) >= 14
    assert sorted(shown()) == sorted([*numbers, *rows, *invariants()])


def test_facts_and_tests_of_the_contract_name_each_other() -> None:
    named = set(re.findall(r"`([^\s`]+::[^\s`]+)`", (TESTS / "KINESIS.md").read_text()))
    existing = {test for test, _ in marked()}
    assert named <= existing
    assert {test for test in existing if test.startswith("support/kinesis_contract.py")} <= named
