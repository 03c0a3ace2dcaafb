"""Runs a program in the sandbox and judges what it leaves behind."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlhf_core.config import ConfigError, foreign_code
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_code.extract import program
from rlhf_plugin_code.sandbox import Ended, SandboxError
from rlhf_plugin_discover.kissing.check import check_kissing

if TYPE_CHECKING:
    from rlhf_plugin_discover.config import LeftBehindConfig


Check = Callable[[Any], float]
MARK = "\x1evalue:"
LEAVE = Path(__file__).with_name("leave.txt").read_text()
"""What is run after the program: it writes the variable, and so do its errors."""


class Construction:
    """See :class:`LeftBehindConfig`, whose ``checker()`` returns a value's worth or raises ValueError; what its
    attribute ``facts(value)`` returns, if it has one, is added to the parts."""

    def __init__(self, config: LeftBehindConfig) -> None:
        self.config, self.check = config, config.checker()
        self.sandbox = config.sandbox.build()
        self.sandbox.start()
        self.leave = LEAVE.format(name=config.variable, mark=MARK)

    def verify(self, sample: Sample) -> Score:
        """The value's worth, or 0.0 with the reason; parts ``format``, ``ran``, ``valid``, ``timeout``, ``run_s``,
        ``check_s``."""
        parts = {"format": 0.0, "ran": 0.0, "valid": 0.0, "timeout": 0.0}
        code = program(sample.completion, self.config.extract)
        if code is None:
            return Score(0.0, parts, detail="there is no program in the answer")
        try:
            ended = self.sandbox.script(code + "\n" + self.leave)
        except SandboxError as error:
            return Score.failed(ScoreStatus.ERROR, str(error))
        parts |= {"format": 1.0, "timeout": float(ended.why == "time"), "run_s": round(ended.seconds, 4)}
        value, wrong = result_of(ended, self.config.sandbox.timeout_s, self.config.sandbox.output_kb)
        if wrong:
            return Score(0.0, parts, detail=wrong)
        started = time.perf_counter()
        try:
            worth, wrong = float(self.check(value)), ""
        except ValueError as error:
            worth, wrong = 0.0, str(error)
        parts |= getattr(self.check, "facts", no_facts)(value)
        parts |= {"ran": 1.0, "valid": float(not wrong), "check_s": round(time.perf_counter() - started, 4)}
        return Score(worth, parts, detail=wrong)

    def close(self) -> None:
        self.sandbox.close()


def result_of(ended: Ended, timeout_s: float, output_kb: int) -> tuple[Any, str]:
    """(the value of the program's variable, ""), or (None, why there is none and what to change)."""
    if ended.why == "time":
        return None, f"the program did not end within {timeout_s:g} seconds"
    if ended.why != "ended":
        return None, f"the program was ended: too {'much memory' if ended.why == 'memory' else f'many {ended.why}'}"
    if ended.code:
        error = ended.stderr.strip()[-1500:] or "it wrote no reason"
        return None, f"the program failed with exit code {ended.code}:\n{error}"
    _, mark, text = ended.stdout.rpartition(MARK)
    if not mark:
        return None, "the program ended before its last line, by itself (sys.exit?)"
    try:
        return json.loads(text), ""
    except (ValueError, RecursionError) as error:
        return None, f"what the program left cannot be read; more than {output_kb} kB? ({error})"


def no_facts(value: Any) -> dict[str, float]:
    return {}


def kissing_facts(points: Any) -> dict[str, float]:
    """``num_points`` and ``dimension`` (of the first vector), valid or not."""
    count = len(points) if isinstance(points, list) else 0
    first = points[0] if count else None
    return {"num_points": float(count), "dimension": float(len(first)) if isinstance(first, list) else 0.0}


def kissing_check(dimensions: int) -> Check:
    def check(points: Any) -> float:
        checked = check_kissing(points, dimensions)
        if not checked.valid:
            raise ValueError(f"not valid ({checked.points} vectors): {checked.reason}")
        return float(checked.points)

    check.facts = kissing_facts  # pyright: ignore[reportFunctionMemberAccess]
    return check


def load_check(file: str) -> Check:
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"the check '{file}' does not exist", where="verifier.check", fix="name a Python file with check(value)"
        )
    spec = importlib.util.spec_from_file_location("rlhf_discover_check", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with foreign_code("the check cannot be loaded", file, "correct the file", ConfigError):
        spec.loader.exec_module(module)
    check: Any = getattr(module, "check", None)
    if not callable(check):
        raise ConfigError(f"the check '{file}' defines no function check(value)", fix="def check(value): return ...")
    return cast(Check, check)
