"""The table of faults names tests that are there, and its command counts what they say."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

from rlhf_core.plugins.registry import Registry
from scripts.audit.__main__ import FAMILIES, Fault, count_property_tests, missing_tests, print_table, read_faults
from scripts.audit.seeds import Requirement, absent_files, page, read_seeds
from tests.docs.place import write_inputs
from tests.docs.test_blocks import click_command

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


@pytest.fixture(scope="module")
def rows() -> list[Requirement]:
    return read_seeds()


def test_every_row_says_what_is_there_and_names_files_that_are(rows: list[Requirement]) -> None:
    assert absent_files(rows) == []
    assert absent_files([Requirement("000:1", "", ("docs/no_such_page.md", "rlhf study list"), "works")]) == [
        "docs/no_such_page.md"
    ]
    for row in rows:
        assert re.fullmatch(r"works|(partly|missing): .+", row.now), row
        assert re.fullmatch(r"00[012]:\d+|F\d", row.place), row
    assert page().count("\n| ") == len(rows) + 1


def test_every_command_of_a_row_has_such_options(rows: list[Requirement]) -> None:
    words = [shlex.split(part) for row in rows for part in row.shown if part.startswith("rlhf ")]
    names = {entry.name for entry in Registry(disabled=()).entries()}
    for command in words:
        found, rest = click_command(command)
        if "--help" not in rest:
            found.make_parser(click.Context(found)).parse_args(list(rest))
        if command[1:3] in (["plugins", "info"], ["study", "run"], ["study", "show"]):
            assert command[3] in names, command
    assert len(words) > 100


def test_every_training_of_a_row_is_a_configuration(
    rows: list[Requirement], tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    parts = [part for row in rows for part in row.shown if part.startswith(("rlhf train ", "rlhf memory plan --algo"))]
    for part in parts:
        words = [word for word in shlex.split(part)[2:] if word != "--dry-run"]
        settings = itertools.pairwise(words)  # of a plan only what a configuration has, too
        kept = [word for pair in settings if pair[0] in ("--algo", "--set") for word in pair]
        options = words if part.startswith("rlhf train") else kept
        ran = call("config", "show", *options)
        assert ran.code == 0, f"{part}\n{ran.err}"
    assert len(parts) > 15
