"""Verifiers that run what a model wrote. A program that is wrong, crashes, is late or too large gets 0.0; status
``error`` is for tests that cannot be run and for a sandbox that failed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from rlhf_core.config import BuildContext
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_code.config import AppsConfig, AssertsConfig, CodeConfig, ProgramConfig
from rlhf_plugin_code.extract import before, begins, program
from rlhf_plugin_code.rows import Asserted, BrokenTests, calls, cases
from rlhf_plugin_code.sandbox import Ended, SandboxError, TestReport

C = TypeVar("C", bound=CodeConfig)


class _Coder(Generic[C]):
    """Finds the program and runs it; a subclass decides what it is tested against."""

    def __init__(self, config: C) -> None:
        self.config = config
        self.sandbox = config.sandbox.build()
        self.sandbox.start()

    def verify(self, sample: Sample) -> Score:
        """One verdict. Parts: ``format`` (a program was found), ``tests`` (share passed), ``timeout``."""
        code = program(sample.completion, self.config.extract)
        if code is None:
            return Score(0.0, {"format": 0.0, "tests": 0.0, "timeout": 0.0}, detail="no program in the completion")
        try:
            return self.judge(code, sample)
        except BrokenTests as error:
            return Score.failed(ScoreStatus.ERROR, f"tests of {sample.prompt.id}: {error}")
        except SandboxError as error:
            return Score.failed(ScoreStatus.ERROR, str(error))

    def judge(self, code: str, sample: Sample) -> Score:
        raise NotImplementedError

    def against(self, code: str, row: Asserted) -> Score:
        report = self.sandbox.tests(code, row.tests, setup=row.setup, names=row.names)
        if report.broken:
            raise BrokenTests(report.broken)
        return self.score(report.passed, report.late, explain(report))

    def score(self, passed: Sequence[bool], late: bool, detail: str) -> Score:
        share = sum(passed) / len(passed)
        value = share if self.config.credit == "mean" else float(share == 1.0)
        return Score(value, {"format": 1.0, "tests": share, "timeout": float(late)}, detail=detail)

    def close(self) -> None:
        self.sandbox.close()


class Asserts(_Coder[AssertsConfig]):
    """See :class:`AssertsConfig`."""

    def judge(self, code: str, sample: Sample) -> Score:
        """Run the row's asserts in one process, the program in another."""
        return self.against(self.complete(code, sample), self.config.row(sample.prompt))

    def complete(self, code: str, sample: Sample) -> str:
        return code


class HumanEval(Asserts):
    """See :class:`HumanEvalConfig`."""

    def complete(self, code: str, sample: Sample) -> str:
        """The whole program: the head of the prompt's function, or what stands before it there, is added."""
        entry = str(sample.prompt.meta.get("entry_point", ""))
        prompt = str(sample.prompt.meta.get("prompt") or sample.prompt.text)
        head = before(prompt, entry)
        if head is None:
            return code
        return prepend(head, code) if begins(entry).search(code) else prompt + code


class StdinStdout(_Coder[AppsConfig]):
    """See :class:`AppsConfig`."""

    def judge(self, code: str, sample: Sample) -> Score:
        """Run the tests until the time is over; those that it does not reach count as failed."""
        columns = cases(self.config, sample.prompt)
        if columns["fn_name"]:
            return self.against(code, calls(columns))
        passed, late, detail = [], False, ""
        left_s = self.config.sandbox.timeout_s
        for number, (test_input, test_output) in enumerate(zip(columns["inputs"], columns["outputs"])):
            ended = self.sandbox.script(code, lines(test_input), timeout_s=max(left_s, 0.05))
            left_s -= ended.own_s
            late = ended.why == "time"
            passed.append(ended.good and same_output(ended.stdout, lines(test_output), self.config.tolerance))
            if not passed[-1] and not detail:
                detail = f"test {number + 1}: {how(ended)}"
            if late:
                break
        return self.score([*passed, *[False] * (len(columns["inputs"]) - len(passed))], late, detail)


class Program(_Coder[ProgramConfig]):
    """See :class:`ProgramConfig`."""

    def __init__(self, config: ProgramConfig, ctx: BuildContext) -> None:
        super().__init__(config)
        self.other = config.verifier.build(ctx) if config.verifier is not None else None

    def verify(self, sample: Sample) -> Score:
        """One verdict, with part ``ran`` in place of ``tests``; ``missing`` without the answer that it needs."""
        if self.config.needs_answer and sample.prompt.answer is None:
            return Score.failed(ScoreStatus.MISSING, f"prompt {sample.prompt.id} has no reference answer")
        return super().verify(sample)

    def judge(self, code: str, sample: Sample) -> Score:
        """Run the program; the other verifier, or equality, judges what it prints."""
        ended = self.run(code, lines(sample.prompt.meta.get(self.config.stdin_column) or ""))
        parts = {"format": 1.0, "ran": float(ended.good), "timeout": float(ended.why == "time")}
        if not ended.good:
            return Score(0.0, parts, detail=how(ended))
        if self.other is None:
            right = same_output(ended.stdout, str(sample.prompt.answer), 0.0)
            return Score(float(right), parts, detail="" if right else f"printed {ended.stdout[:80]!r}")
        score = self.other.verify(Sample(sample.prompt, ended.stdout, sample.finish_reason))
        return Score(score.value, {**score.parts, **parts}, score.status, score.detail)

    def close(self) -> None:
        super().close()
        close = getattr(self.other, "close", None)
        if callable(close):
            close()

    def run(self, code: str, stdin: str) -> Ended:
        """As Python in a warm interpreter, or by the given command."""
        if self.config.command:
            return self.sandbox.command(self.config.command, stdin, files={"main": code})
        return self.sandbox.script(code, stdin)


def prepend(head: str, code: str) -> str:
    """A program after other lines; its ``from __future__`` lines still come first, as they must."""
    lines = code.splitlines(keepends=True)
    first = [line for line in lines if line.startswith("from __future__ ")]
    return "".join([*first, head, "\n", *(line for line in lines if line not in first)])


def explain(report: TestReport) -> str:
    for number, (passed, why) in enumerate(zip(report.passed, report.reasons)):
        if not passed:
            stderr_lines = report.program.stderr.strip().splitlines()
            killed_for = {"memory": "too much memory", "processes": "too many processes"}.get(report.program.why, "")
            return f"test {number + 1}: {killed_for or why}" + (f" ({stderr_lines[-1][:120]})" if stderr_lines else "")
    return ""


def how(ended: Ended) -> str:
    if ended.why != "ended":
        return {"time": "no end in time", "memory": "too much memory"}.get(ended.why, ended.why)
    if ended.code:
        stderr_lines = ended.stderr.strip().splitlines()
        return f"exit code {ended.code}" + (f": {stderr_lines[-1][:160]}" if stderr_lines else "")
    return f"printed {ended.stdout[:80]!r}"


def lines(text: Any) -> str:
    """Standard input or output as one text; some rows give a list of lines."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def same_output(printed: str, expected: str, tolerance: float) -> bool:
    """Equal line by line but for white space and trailing empty lines; tokens may be numbers that are close."""
    printed_lines, expected_lines = _lines(printed), _lines(expected)
    return len(printed_lines) == len(expected_lines) and all(
        len(a) == len(b) and all(same_token(x, y, tolerance) for x, y in zip(a, b))
        for a, b in zip(printed_lines, expected_lines)
    )


def _lines(text: str) -> list[list[str]]:
    lines = [line.split() for line in text.strip().splitlines()]
    return [line for line in lines if line] if any(not line for line in lines) else lines


def same_token(printed: str, expected: str, tolerance: float) -> bool:
    """Equal text, or two numbers that are close. Integers are compared exactly."""
    if printed == expected:
        return True
    if len(printed) > 40 or len(expected) > 40 or not tolerance or (_is_integer(printed) and _is_integer(expected)):
        return False
    try:
        a, b = float(printed), float(expected)
    except ValueError:
        return False
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def _is_integer(token: str) -> bool:
    return token.lstrip("+-").isdigit()
