"""The prompts of suites as the model is fed them, their verifiers, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_core.cli import context_of, load_sampler, open_registry
from rlhf_core.config import ConfigError
from rlhf_core.models import ModelConfig
from rlhf_core.rollouts import FinishReason, Rollout, RolloutRequest
from rlhf_eval.benchmark import check_rows
from rlhf_eval.cli import suite_of
from rlhf_eval.items import items, rows, worked_examples
from rlhf_eval.styles import R1_ZERO
from rlhf_eval.suites import Gsm8kSuite, MbppSuite, SuiteConfig
from rlhf_plugin_verifiers.maths.tags import R1_ZERO_PROMPT
from rlhf_testing import check_config

Write = Callable[[str, Sequence[Mapping[str, Any]]], Path]
ROWS = [
    {"question": f"What is {n} + 1?", "answer": f"{n} + 1 = <<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"} for n in range(6)
]


def items_of(suite: SuiteConfig, chat: bool = False) -> list[Any]:
    ctx = context_of(open_registry())
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


def test_settings_of_a_suites_own_verifier_need_no_name(write: Write) -> None:
    ctx, data = context_of(open_registry()), str(write("rows.jsonl", ROWS))
    for style, name, mode in (("plain", "gsm8k", "strict"), ("cot", "gsm8k", "lenient")):
        suite = suite_of(ctx, "gsm8k", path=data, style=style, settings=(f"verifier.mode={mode}",))
        verifier: Any = suite.resolved(ctx).verifier
        assert (verifier.name, verifier.mode) == (name, mode)
    with pytest.raises(ConfigError, match=r"did you mean 'verifier\.mode'"):
        suite_of(ctx, "gsm8k", path=data, settings=("verifier.mod=strict",))


def test_a_benchmark_takes_the_published_checks_and_a_reward_the_text() -> None:
    registry = open_registry()
    ctx = context_of(registry)
    benchmark: Any = suite_of(ctx, "ifeval", path="x").resolved(ctx).verifier
    own: Any = suite_of(ctx, "ifeval", path="x", settings=("verifier.reference=text",)).resolved(ctx).verifier
    reward: Any = registry.config("reward", "ifeval")
    assert (benchmark.reference, own.reference, reward.verifier.reference) == ("published", "text", "text")


def test_unsafe_execution_is_for_suites_that_run_programs() -> None:
    ctx = context_of(open_registry())
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
        (("lm_eval:t", "--by", "level"), "does not take --by"),
        (("lm_eval:t", "--engine-set", "dtype=float32"), "does not take --engine-set"),
    ],
)
def test_bad_input_is_named_before_a_model_is_loaded(
    rlhf: Callable[..., Any], write: Write, options: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch
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
    suite = registry.config(
        "benchmark",
        "prompts",
        {"path": str(write("rows.jsonl", [{"prompt": "1 + 2", "answer": "3"}])), "verifier": "numeric", "workers": 1},
    )
    check_config(suite, "benchmark")
    built = suite.build(context_of(registry).with_(policy=policy))
    try:
        metrics = built.evaluate(Mute(), 0)
        assert built.rows([0], Mute())[0]["mean_logprob"] is None
    finally:
        built.close()
    assert (metrics["empty"], metrics["pass@1"], metrics["tokens"]) == (1.0, 0.0, 0.0)
