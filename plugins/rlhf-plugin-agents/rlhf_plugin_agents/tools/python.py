"""Runs an agent's Python in the sandbox of rlhf-plugin-code: every program afresh, or one cell after the other."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from threading import Lock

from rlhf_core.rollouts import ToolError
from rlhf_plugin_agents.tools.library import DATA
from rlhf_plugin_code.config import SandboxSettings
from rlhf_plugin_code.sandbox import Ended, TestReport

START_S = 0.5
"""Of Python itself, and of measuring; no cell's."""
MAX_PART = 3500
"""Characters of standard output, and of standard error, that an agent reads: of the end, where the traceback is."""
CELLS = (DATA / "cells.txt").read_text(encoding="utf-8")
"""Makes the state of earlier cells again, in silence, and runs the last one."""
MARK, END = "\x00cell\x00", "\x00"
"""Stand before what the last cell prints, with the seconds that the earlier ones took between them; without them, an
earlier one has ended the program."""


class Programs:
    """One sandbox for all threads of this process; it starts with the first program."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.timeout_s = settings.timeout_s
        self._sandbox, self._lock = settings.build(), Lock()
        weakref.finalize(self, self._sandbox.close)

    def run(self, code: str, timeout_s: float | None = None) -> Ended:
        with self._lock:
            return self._sandbox.script(code, timeout_s=timeout_s)

    def tests(self, code: str, tests: Sequence[str], names: Sequence[str]) -> TestReport:
        with self._lock:
            return self._sandbox.tests(code, tests, names=names)


def programs(settings: SandboxSettings) -> Programs:
    return _programs(settings.model_dump_json())


@cache
def _programs(settings_json: str) -> Programs:
    return Programs(SandboxSettings.model_validate_json(settings_json))


class PythonExec:
    """Answers with what a program prints. With ``stateful`` earlier cells are run again in silence (what they read from
    a clock or a random generator may differ); a cell that was stopped is forgotten."""

    def __init__(self, settings: SandboxSettings, *, stateful: bool = False) -> None:
        self.programs, self.stateful = programs(settings), stateful
        self._cells: list[str] = []
        self._cells_s = 0.0

    def reset(self) -> None:
        self._cells, self._cells_s = [], 0.0

    def call(self, code: str) -> str:
        """What it printed; a :class:`ToolError` with that and the traceback if it failed or was stopped."""
        if not self.stateful:
            return said(self.programs.run(code), self.programs.timeout_s)
        cells = [*self._cells, code]
        limit_s = self.programs.timeout_s
        text = CELLS.replace("MARK", ascii(MARK)).replace("END", ascii(END)).replace("CELL_TEXTS", ascii(cells))
        ended = self.programs.run(text, limit_s + 2 * self._cells_s)
        _, mark, rest = ended.stdout.partition(MARK)
        earlier_s, _, printed = rest.partition(END)
        if not mark and ended.why == "ended":
            self.reset()
            raise ToolError("an earlier cell ended the program; all cells are forgotten")
        ended = replace(ended, stdout=printed)
        took_s = max(ended.own_s - _seconds(earlier_s), 0.0)
        if mark and took_s > limit_s + START_S:  # what the earlier ones may take is not for this one
            ended = replace(ended, why="time")
        if ended.why == "ended":
            # Its own time, waiting for a processor left out: what the next call needs to run these cells again.
            self._cells, self._cells_s = cells, min(ended.own_s, self._cells_s + limit_s)
        return said(ended, limit_s)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # an earlier cell wrote the mark itself
        return 0.0


def said(ended: Ended, limit_s: float) -> str:
    printed = "\n".join(part for part in (_end(ended.stdout), _end(ended.stderr)) if part)
    if ended.good:
        return printed or "(nothing was printed)"
    reasons = {"time": f"stopped after {limit_s:g} s", "ended": f"exit code {ended.code}"}
    why = reasons.get(ended.why, f"stopped: too much {ended.why}")
    raise ToolError(f"{why}\n{printed}" if printed else why)


def _end(text: str) -> str:
    text = text.rstrip("\n")
    return (
        text if len(text) <= MAX_PART else f"[the first {len(text) - MAX_PART} characters are cut]\n{text[-MAX_PART:]}"
    )
