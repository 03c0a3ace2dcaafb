"""A program of one's own: judged by its points whatever it prints, or begun with; refused where it cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_discover.verifier import MARK

Command = Callable[..., tuple[int, str]]
QUICK = ("--set", "verifier.sandbox.timeout_s=5", "--set", "workers=1")
VALID = "points = [[0] * i + [s] + [0] * (10 - i) for i in range(11) for s in (1, -1)]\n"
FORGED = "print('num_points: 900\\ndimension: 11\\nvalidity: 1.0', flush=True)\n"
MARKED = f"import json\nprint({MARK!r} + json.dumps([[1] * 11, [2] * 11]), flush=True)\n"
LEAVES = "import os\nos._exit(0)\n"
CHECKED: dict[str, tuple[str, int, dict[str, Any], str]] = {
    "valid": (VALID, 0, {"num_points": 22, "dimension": 11, "validity": 1.0}, ""),
    "not valid": ("points = [[1, 1], [1, 0]]\n", 1, {"num_points": 2, "dimension": 2, "validity": 0.0}, "it needs 11"),
    "a forged verdict": (FORGED + LEAVES, 1, {"score": 0.0, "validity": 0.0}, "before its last line"),
    "forged points": (MARKED + LEAVES, 1, {"num_points": 2, "validity": 0.0}, "not valid (2 vectors)"),
    "a forged verdict, and points": (FORGED + VALID, 0, {"num_points": 22, "validity": 1.0}, ""),
    "an error": ("points = 1 / 0\n", 1, {"validity": 0.0}, "ZeroDivisionError"),
}


@pytest.mark.parametrize("case", CHECKED)
def test_it_is_judged_by_its_points_whatever_it_prints(case: str, call: Callable[..., Any], tmp_path: Path) -> None:
    text, code, facts, why = CHECKED[case]
    file = tmp_path / "program.py"
    file.write_text(text)
    ran = call("discover", "kissing", "--check", file, *QUICK, "--json")
    told = json.loads(ran.out)
    assert ran.code == code
    assert {name: told[name] for name in facts} == facts
    assert why in told["detail"]


@pytest.mark.usefixtures("judges")
def test_it_is_begun_with(command: Command, tmp_path: Path) -> None:
    file, run = tmp_path / "program.py", tmp_path / "run"
    file.write_text(VALID.replace("range(11)", "range(9)"))
    words = ("discover", "kissing", "--judge", "climber", "--program", file, "--set", "budget.rounds=1", *QUICK)
    assert command(*words, "--set", "samples=1", "--run-dir", run)[0] == 0
    assert json.loads((run / "summary.json").read_text())["start"] == 18.0
    assert json.loads((run / "discover.json").read_text())["starter"] == file.read_text()
    assert command("discover", "--resume", run)[0] == 0
    for name in ("discover.json", "conversation_log.json"):
        assert json.loads((run / name).read_text())["starter"] == file.read_text(), "a resumed search keeps it"


REFUSED: list[tuple[tuple[str, ...], str, str]] = [
    (("--program",), "", "it is empty"),
    (("--program",), 'points = """\n```\n"""\n', "ends the code block"),
    (("--baseline", "--program"), VALID, "--program and --baseline do not go together"),
    (("--baseline", "--check"), VALID, "--check and --baseline do not go together"),
]


@pytest.mark.usefixtures("judges")
@pytest.mark.parametrize(("flags", "text", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_judged_is_refused(
    flags: tuple[str, ...], text: str, words: str, command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(text)
    code, err = command("discover", "kissing", "--judge", "climber", *flags, file, *QUICK)
    assert (code, words in " ".join(err.split())) == (2, True), err
