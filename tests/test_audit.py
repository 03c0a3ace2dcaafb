"""The table of faults names tests that are there, and its command counts what they say."""

from __future__ import annotations

from collections import Counter

import pytest

from scripts.audit.__main__ import FAMILIES, Fault, count_property_tests, missing_tests, print_table, read_faults

THIS = "tests/test_audit.py"


def test_every_kind_has_tests_that_are_there() -> None:
    faults = read_faults()
    assert missing_tests(faults) == []
    assert all(fault.kind and fault.tests for fault in faults)
    assert {fault.number[0] for fault in faults} == set(FAMILIES)
    assert faults == sorted(faults, key=lambda fault: (fault.number[0], int(fault.number[1:])))


def test_a_test_that_was_renamed_is_missing() -> None:
    gone = ("tests/test_no_such_file.py", f"{THIS}::" + "test_no_such_test")
    assert missing_tests([Fault("A1", "", (THIS, *gone))]) == list(gone)


def test_property_tests_are_counted_by_file_and_by_name() -> None:
    file = "tests/engine/test_call_forms.py"
    assert count_property_tests(file) > 0 == count_property_tests(THIS)
    assert count_property_tests(f"{file}::no_such_test") == 0


@pytest.mark.parametrize(
    ("outcomes", "well", "numbers"),
    [
        ({"passed": 3, "skipped": 1}, True, "3 | 0 | 1 | 0"),
        ({"passed": 3, "failed": 1}, False, "3 | 1 | 0 | 0"),
        ({"skipped": 2}, False, "0 | 0 | 2 | 0"),
    ],
)
def test_a_kind_needs_a_test_that_passed_and_none_that_failed(
    outcomes: dict[str, int], well: bool, numbers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = Counter({(THIS, "test_a", outcome): count for outcome, count in outcomes.items()})
    counts["tests/other.py", "test_a", "failed"] = 1
    assert print_table([Fault("A1", "a kind", (f"{THIS}::test_a",))], counts) is well
    assert capsys.readouterr().out.splitlines()[-1] == f"| A1 | a kind | {THIS}::test_a | {numbers} |"
