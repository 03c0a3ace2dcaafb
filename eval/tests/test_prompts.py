"""How suites ask and judge, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rlhf_core.api import (
    ComponentConfig,
    ConfigError,
    FinishReason,
    JudgeReply,
    JudgeRequest,
    ModelConfig,
    RlhfError,
    Rollout,
    RolloutRequest,
    Score,
    ScoreStatus,
)
from rlhf_core.sdk import component_of, load_sampler, open_registry
from rlhf_core.testing.config import check_config
from rlhf_eval.benchmark import check_rows
from rlhf_eval.cli import suite_of
from rlhf_eval.compare import compare
from rlhf_eval.grading import category, modes_of, stated
from rlhf_eval.harness import context
from rlhf_eval.items import items, rows, worked_examples
from rlhf_eval.report import report, warnings
from rlhf_eval.selectors import Selector, score
from rlhf_eval.store import ResultFolder, Stored
from rlhf_eval.styles import R1_ZERO
from rlhf_eval.suites import Gsm8kSuite, MbppSuite, SuiteConfig
from rlhf_plugin_verifiers.maths.tags import R1_ZERO_PROMPT

from .conftest import Ran

Write = Callable[[str, Sequence[Mapping[str, Any]]], Path]
ROWS = [
    {"question": f"What is {n} + 1?", "answer": f"{n} + 1 = <<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"} for n in range(6)
]


def items_of(suite: SuiteConfig, chat: bool = False) -> list[Any]:
    ctx = context(open_registry(), 0)
    full = suite.resolved(ctx)
    ready = check_rows(full, ctx)
    prompts = rows(full, ready.datasets)
    return items(full, prompts, worked_examples(full, ctx, prompts), chat)


def test_r1_zero_is_the_plugins_prompt() -> None:
    assert R1_ZERO == R1_ZERO_PROMPT


def test_worked_examples_go_before_the_question_as_text_or_as_turns(write: Write) -> None:
    data, shots = write("test.jsonl", ROWS[:2]), write("train.jsonl", ROWS[2:])
    suite = Gsm8kSuite(path=str(data), style="cot", shots=2, shots_path=str(shots))
    text = items_of(suite)[1].messages[-1]["content"]
    assert text == (
        "Q: What is 2 + 1?\nA: 2 + 1 = 3\nThe answer is 3.\n\nQ: What is 3 + 1?\nA: 3 + 1 = 4\n"
        "The answer is 4.\n\nQ: What is 1 + 1?\nA:"
    )
    turns = items_of(suite, chat=True)[0].messages
    assert [m["role"] for m in turns] == ["user", "assistant", "user", "assistant", "user"]
    assert turns[1]["content"].endswith("The answer is 3.")


def test_the_real_suites_read_the_published_files(test_data: Path) -> None:
    gsm8k = items_of(Gsm8kSuite(path=str(test_data / "gsm8k" / "test.jsonl.gz"), style="r1_zero"))
    assert len(gsm8k) == 1319
    assert gsm8k[0].prompt.answer == "18"
    assert gsm8k[0].messages[-1]["content"].startswith("A conversation between User and Assistant.")
    mbpp = items_of(MbppSuite(path=str(test_data / "mbpp" / "sanitized-mbpp.json"), limit=5))
    assert "assert set(similar_elements" in mbpp[0].messages[-1]["content"]


def test_categories_modes_and_stated_answers() -> None:
    parts = [Score(float(right), {"format": form}) for form in (1.0, 0.0) for right in (True, False)]
    assert [category(s) for s in parts] == ["format and answer", "format only", "answer only", "neither"]
    assert category(Score.failed(ScoreStatus.TIMEOUT, "late")) == "not judged"
    assert category(Score(1.0)) == "right"
    registry = open_registry()
    assert modes_of(registry.load("verifier", "gsm8k").model_validate({"name": "gsm8k"})) == {  # pyright: ignore[reportArgumentType]
        "strict": "strict",
        "lenient": "lenient",
    }
    assert [stated(d) for d in ("stated '1/2'", "stated 18", "no answer found")] == ["1/2", "18", None]


def row(i: int, value: float | None, **more: Any) -> dict[str, Any]:
    base = {
        "id": f"p{i}",
        "sample": 0,
        "value": value,
        "status": "ok" if value is not None else "timeout",
        "parts": {},
        "detail": "",
        "category": "right",
        "finish_reason": "eos",
        "stop": None,
        "tokens": 3,
        "mean_logprob": -0.1,
        "completion": "x",
        "strict": value,
        "lenient": value,
        "answer": "1",
        "prompt": [{"content": "q"}],
    }
    return {**base, **more}


def test_a_missing_verdict_counts_neither_way_and_is_told() -> None:
    result = report([row(0, 1.0), row(1, 0.0), row(2, None)])
    assert result["pass_at"]["1"]["value"] == 0.5
    assert result["statuses"] == {"ok": 2, "timeout": 1}
    assert any("no verdict on 1" in w for w in warnings(result))
    with pytest.raises(Exception, match="none of 2 completions could be judged"):
        report([row(0, None), row(1, None)])


def test_a_mode_without_a_verdict_counts_neither_way_there_and_is_told() -> None:
    result = report([row(0, 1.0), row(1, 1.0, strict=None), row(2, 0.0, lenient=1.0)])
    assert (result["modes"]["strict"]["value"], result["modes"]["strict"]["missing"]) == (0.5, 1)
    assert (result["modes"]["lenient"]["value"], result["modes"]["lenient"]["missing"]) == (1.0, 0)
    assert [w for w in warnings(result) if "verdict" in w] == [
        "no strict verdict on 1 of the judged completions; they count neither way there"
    ]
    assert "modes" not in report([row(0, 1.0, strict=None)])


def test_first_completions_are_compared_where_both_were_judged() -> None:
    a = [row(0, 1.0), row(1, None), row(1, 1.0, sample=1)]
    b = [row(0, 0.0), row(1, 0.0), row(1, 0.0, sample=1)]
    comparison = compare(Stored(Path("a"), {}, a), Stored(Path("b"), {}, b))
    assert comparison["prompts"] == 2
    assert {k: comparison["mcnemar"][k] for k in ("prompts", "lost", "gained", "examples_lost")} == {
        "prompts": 1,
        "lost": 1,
        "gained": 0,
        "examples_lost": ["p0"],
    }


def test_truncation_runaway_questions_and_lost_format_are_warned_about() -> None:
    rows = [row(i, 0.0, finish_reason="length", completion="7. Question: 8?", lenient=1.0) for i in range(4)]
    text = " ".join(warnings(report(rows)))
    assert "100.0% of the completions were cut" in text
    assert "ask themselves another question" in text
    assert "strict 0.0%, lenient 100.0%" in text


class MarkerConfig(ComponentConfig):
    """A judge that likes digits."""

    name: str = "marker"

    def build(self, ctx: Any) -> Any:
        return self

    def ask(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        return [
            JudgeReply("Mark: 9" if "7" in r.messages[-1]["content"].split("Answer:")[1] else "no idea")
            for r in requests
        ]


def test_a_judge_chooses_and_a_reply_without_a_mark_is_missing(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path / "e", {})
    folder.open(1)
    rows = [row(0, 1.0, sample=0, completion="7"), row(0, 0.0, sample=1, completion="8")]
    chosen = Selector("marker", "judge", MarkerConfig())
    scores = score(chosen, folder, rows, context(open_registry(), 0))
    assert scores == {("p0", 0): 9.0, ("p0", 1): None}
    assert report(rows, {"marker": scores})["best_at"]["marker"]["2"]["value"] == 1.0
    lines = (tmp_path / "e" / "scores" / "marker.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["status"] == "missing"


class FlakyConfig(MarkerConfig):
    """Fails the first time."""

    name: str = "flaky"
    calls: ClassVar[list[int]] = []

    def ask(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        self.calls.append(len(requests))
        if len(self.calls) < 3:
            return [JudgeReply.failed(ScoreStatus.TIMEOUT, "too late") for _ in requests]
        return [JudgeReply("5") for _ in requests]


def test_a_selector_that_failed_is_asked_again_and_never_taken_for_a_tie(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path / "e", {})
    folder.open(1)
    rows = [row(0, 1.0, sample=0), row(0, 0.0, sample=1)]
    for _ in range(2):
        with pytest.raises(RlhfError, match="scored none of 2"):
            score(Selector("flaky", "judge", FlakyConfig()), folder, rows, context(open_registry(), 0))
    scores = score(Selector("flaky", "judge", FlakyConfig()), folder, rows, context(open_registry(), 0))
    assert scores == {("p0", 0): 5.0, ("p0", 1): 5.0}
    score(Selector("flaky", "judge", FlakyConfig()), folder, rows, context(open_registry(), 0))
    assert FlakyConfig.calls == [2, 2, 2], "what is scored is kept"


class HaltingConfig(MarkerConfig):
    """Is interrupted at its third call, and counts what it was asked."""

    name: str = "halting"
    calls: ClassVar[list[int]] = []

    def ask(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        self.calls.append(len(requests))
        if len(self.calls) == 3:
            raise KeyboardInterrupt
        return [JudgeReply("5") for _ in requests]


def test_an_interruption_loses_one_part_of_the_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_eval.selectors.PART", 2)
    folder, messages = ResultFolder(tmp_path / "e", {}), list[str]()
    folder.open(1)
    rows = [row(n, 1.0) for n in range(7)]
    halting = Selector("halting", "judge", HaltingConfig())
    with pytest.raises(KeyboardInterrupt):
        score(halting, folder, rows, context(open_registry(), 0), messages.append)
    assert messages == ["halting: 2 of 7 completions scored", "halting: 4 of 7 completions scored"]
    scores = score(halting, folder, rows, context(open_registry(), 0))
    assert HaltingConfig.calls == [2, 2, 2, 2, 1]
    assert list(scores) == [(f"p{n}", 0) for n in range(7)]
    assert set(scores.values()) == {5.0}


class OnDiskConfig(FlakyConfig):
    """Its model lies in a folder, further down in its settings."""

    name: str = "on_disk"
    model: dict[str, str]
    calls: ClassVar[list[int]] = [0, 0]


def test_other_weights_of_a_judge_are_another_judge(tmp_path: Path) -> None:
    folder, weights = ResultFolder(tmp_path / "e", {}), tmp_path / "judge" / "weights"
    folder.open(1)
    weights.parent.mkdir()
    judge = Selector("on_disk", "judge", OnDiskConfig(model={"path": str(weights.parent)}))
    for text in ("first", "first", "other"):
        weights.write_text(text)
        score(judge, folder, [row(0, 1.0)], context(open_registry(), 0))
    assert OnDiskConfig.calls == [0, 0, 1, 1]


def test_settings_of_a_suites_own_verifier_need_no_name(write: Write) -> None:
    ctx, data = context(open_registry(), 0), str(write("rows.jsonl", ROWS))
    for style, name, mode in (("plain", "gsm8k", "strict"), ("cot", "gsm8k", "lenient")):
        suite = suite_of(ctx, "gsm8k", path=data, style=style, settings=(f"verifier.mode={mode}",))
        verifier: Any = suite.resolved(ctx).verifier
        assert (verifier.name, verifier.mode) == (name, mode)
    with pytest.raises(ConfigError, match="did you mean 'mode'"):
        suite_of(ctx, "gsm8k", path=data, settings=("verifier.mod=strict",))


def test_unsafe_execution_is_for_suites_that_run_programs() -> None:
    ctx = context(open_registry(), 0)
    verifier: Any = suite_of(
        ctx, "mbpp", path="x", settings=("verifier.sandbox.timeout_s=3",), unsafe_local_execution=True
    ).verifier
    assert (verifier.sandbox.unsafe_local_execution, verifier.sandbox.timeout_s) == (True, 3.0)
    with pytest.raises(ConfigError, match="has no effect"):
        suite_of(ctx, "gsm8k", path="x", unsafe_local_execution=True)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("gsm8k",), "'openai/gsm8k'"),
        (("gsm8", "--data", "x"), "gsm8k"),
        (("gsm8k", "--data", "none.jsonl"), "none.jsonl"),
        (("gsm8k", "--data", "{rows}", "--style", "r1zero"), "r1_zero"),
        (("gsm8k", "--data", "{rows}", "--template", "Solve:"), "no {prompt}"),
        (("gsm8k", "--data", "{rows}", "--n", "4", "--temperature", "0"), "all the same"),
        (("gsm8k", "--data", "{rows}", "--shots", "2"), "--shots-data"),
        (("gsm8k", "--data", "{rows}", "--shots", "1", "--shots-data", "{rows}", "--style", "cot"), "also a question"),
        (
            ("gsm8k", "--data", "{rows}", "--shots", "1", "--shots-data", "{rows}", "--style", "r1_zero"),
            "worked examples",
        ),
        (("gsm8k", "--data", "{rows}", "--set", "sampling.max_token=3"), "max_tokens"),
        (("gsm8k", "--data", "{rows}", "--model", "./nowhere"), "nowhere"),
        (("gsm8k", "--data", "{rows}", "--best-by", "logprobs"), "--best-by"),
        (("gsm8k", "--data", "{rows}", "--best-by", "judge:none"), "unknown judge"),
        (("gsm8k", "--data", "{bad}"), "bad.jsonl, line 2"),
        (("prompts", "--data", "{rows}"), "--verifier"),
        (("prompts", "--data", "{wordy}", "--verifier", "numeric"), "wordy.jsonl, line 1"),
        (("prompts", "--data", "{unknown}", "--verifier", "ifeval"), "no_such:thing"),
        (("prompts", "--data", "{empty}", "--verifier", "numeric"), "empty"),
        (("prompts", "--verifier", "numeric"), "--data"),
        (("compare", "none", "none"), "holds no evaluation"),
        (("watch", "none", "gsm8k"), "none"),
    ],
)
def test_bad_input_is_named_before_a_model_is_loaded(
    rlhf: Callable[..., Ran], write: Write, options: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "rows": write("rows.jsonl", ROWS),
        "bad": write("bad.jsonl", [ROWS[0], {"question": "?", "answer": "no"}]),
        "wordy": write("wordy.jsonl", [{"prompt": "How many?", "answer": "a few"}]),
        "empty": write("empty.jsonl", []),
        "unknown": write("unknown.jsonl", [{"prompt": "Hi", "instruction_id_list": ["no_such:thing"], "kwargs": [{}]}]),
    }
    monkeypatch.setattr("rlhf_eval.harness.load_sampler", None)  # loading would fail
    ran = rlhf("eval", *(o.format(**files) if o.startswith("{") and o[1:-1] in files else o for o in options))
    assert ran.code == 2, ran.err
    assert named in ran.err


class Mute:
    """An engine whose model ends at once."""

    def generate(self, requests: Sequence[RolloutRequest], sampling: Any, version: int) -> list[Rollout]:
        return [
            Rollout(
                r.prompt_id,
                r.group_index,
                r.prompt_ids,
                (),
                np.zeros(0, np.float32),
                version,
                FinishReason.EOS,
                "",
                r.seed,
            )
            for r in requests
        ]


def test_a_model_that_says_nothing_is_counted(write: Write) -> None:
    registry = open_registry()
    policy, _ = load_sampler(registry, ModelConfig(path="pocket"))
    suite = component_of(
        registry,
        "benchmark",
        "prompts",
        {"path": str(write("rows.jsonl", [{"prompt": "1 + 2", "answer": "3"}])), "verifier": "numeric", "workers": 1},
    )
    check_config(suite, "benchmark")
    built = suite.build(context(registry, 0).with_(policy=policy))
    try:
        metrics = built.evaluate(Mute(), 0)
        assert built.rows([0], Mute())[0]["mean_logprob"] is None
    finally:
        built.close()
    assert (metrics["empty"], metrics["pass@1"], metrics["tokens"]) == (1.0, 0.0, 0.0)
