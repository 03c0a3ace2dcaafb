"""Runs the tests against the kinds of fault of a family, A to E, or of all: one line of a table for each kind.

    python -m scripts.audit A
    python -m scripts.audit B E -m "not slow" -n 2    # what follows the families is for pytest
    python -m scripts.audit seeds    # what the three documents ask for, and what is there

Property tests are those that Hypothesis gives inputs. Exit code 1 if a test fails, or if none of a kind's passes.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from scripts.audit import seeds

ROOT = Path(__file__).parents[2]
FAMILIES = "ABCDE"


class Fault(NamedTuple):
    number: str
    """Its family and its row. Example: ``B25``"""
    kind: str
    tests: tuple[str, ...]
    """Files, or tests in them. Example: ``tests/test_a.py::test_b``"""


def read_faults() -> list[Fault]:
    """The table ``faults.toml``."""
    rows = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
    return [Fault(number, row["kind"], tuple(row["tests"])) for number, row in rows.items()]


def missing_tests(faults: Iterable[Fault]) -> list[str]:
    """Files and tests of the table that the repository does not have."""
    return [test for fault in faults for test in fault.tests if not _exists(test)]


def count_property_tests(test: str) -> int:
    """Tests of this file, or the one that is named, which have ``@given``."""
    file, _, name = test.partition("::")
    functions = [n for n in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(n, ast.FunctionDef)]
    return sum(name in ("", f.name) and any(_is_given(d) for d in f.decorator_list) for f in functions)


def run_tests(tests: Sequence[str], arguments: Sequence[str]) -> Counter[tuple[str, str, str]]:
    """How many cases there were, by file, function and outcome: ``passed``, ``failed`` or ``skipped``."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-m", "not long", "-o", "junit_family=xunit1", f"--junitxml={report}"]
        command = [sys.executable, "-m", "pytest", *options, *dict.fromkeys(tests), *arguments]
        subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.is_file() else []
    return Counter((c.get("file", ""), c.get("name", "").partition("[")[0], _outcome(c)) for c in cases)


def print_table(faults: Iterable[Fault], counts: Counter[tuple[str, str, str]]) -> bool:
    """A row for each kind; returns whether each has a test that passed and none that failed."""
    print("| | kind of fault | tests | passed | failed | skipped | property tests |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    all_pass = True
    for fault in faults:
        of_kind: Counter[str] = Counter()
        for (file, name, outcome), count in counts.items():
            if file in fault.tests or f"{file}::{name}" in fault.tests:
                of_kind[outcome] += count
        all_pass &= of_kind["passed"] > 0 and of_kind["failed"] == 0
        numbers = [*(of_kind[o] for o in ("passed", "failed", "skipped")), sum(map(count_property_tests, fault.tests))]
        print(f"| {fault.number} | {fault.kind} | {', '.join(fault.tests)} | {' | '.join(map(str, numbers))} |")
    return all_pass


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and (not name or f"def {name}(" in (ROOT / file).read_text())


def _is_given(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func).split(".")[-1] == "given"


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.audit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"from: {', '.join(FAMILIES)}; default all; or seeds"
    )
    args, arguments = parser.parse_known_args()
    if args.families == ["seeds"]:
        print(seeds.page(), end="")
        return 0
    if unknown := [family for family in args.families if family not in FAMILIES]:
        parser.error(f"unknown family {', '.join(unknown)}; there are: {', '.join(FAMILIES)}")
    faults = [fault for fault in read_faults() if fault.number[0] in (args.families or FAMILIES)]
    if missing := missing_tests(faults):
        parser.error(f"faults.toml names tests that are not there: {', '.join(missing)}")
    counts = run_tests([test for fault in faults for test in fault.tests], arguments)
    return 0 if print_table(faults, counts) else 1


if __name__ == "__main__":
    sys.exit(main())
