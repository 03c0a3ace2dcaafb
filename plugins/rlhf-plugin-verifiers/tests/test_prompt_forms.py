"""The form that a prompt asks for: graders, solutions to imitate, stop strings, and what is refused at start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_core.config import Registry
from rlhf_core.config.load import resolve
from rlhf_core.config.run import RunConfig
from rlhf_core.rewards import Sample
from rlhf_plugin_verifiers.datasets.config import FOLLOW_UPS, Gsm8kDataConfig, MathDataConfig
from rlhf_plugin_verifiers.exact.config import AnswerTagsConfig
from rlhf_plugin_verifiers.maths.config import R1ZeroConfig
from rlhf_plugin_verifiers.maths.tags import question_only_reward_fn, r1_zero_reward_fn

PUBLISHED = [
    # completion, (format, answer) of Dr. GRPO's published grader, (format, answer) of the strict default
    ("so </think> <answer> 8 </answer>", (1, 1), (1, 1)),
    ("so </think> <answer> 8 </answer>\n", (1, 1), (1, 1)),
    ("so </think> <answer> 8 </answer> Bye, 8 it is", (1, 0), (0, 0)),
    ("so </think> <answer> 9 </answer> <answer> 8 </answer>", (1, 1), (0, 0)),
    ("<answer> 9 so </think> <answer> 8 </answer>", (1, 1), (0, 0)),
    ("so </think> so </think> <answer> 8 </answer>", (1, 1), (0, 0)),
    ("so </think> <answer> 8 </answer> <answer> 9 </answer>", (1, 0), (0, 0)),
    (r"so </think> <answer> It is \boxed{8} </answer>", (1, 1), (1, 1)),
    ("so </think><answer> 8 </answer>", (0, 0), (0, 0)),
    ("so </think> <answer> 8", (0, 0), (0, 0)),
    ("</answer> so </think> <answer> 8", (1, 1), (0, 0)),
]


@pytest.mark.parametrize(("text", "published", "strict"), PUBLISHED)
def test_compatible_grades_as_the_published_grader(
    text: str, published: tuple[int, int], strict: tuple[int, int], sample: Callable[..., Sample]
) -> None:
    rewards = r1_zero_reward_fn(text, "8", "compatible")
    assert (rewards["format_reward"], rewards["answer_reward"]) == published
    rewards = r1_zero_reward_fn(text, "8")
    assert (rewards["format_reward"], rewards["answer_reward"]) == strict
    score = R1ZeroConfig(mode="compatible").build(None).verify(sample(text, "8"))  # type: ignore[arg-type]
    assert (score.parts["format"], score.parts["answer"]) == published


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match="compatible"):
        r1_zero_reward_fn("", "8", "compatibel")  # type: ignore[arg-type]


def test_solutions_to_imitate_earn_the_reward_of_their_prompt(test_data: Path, tmp_path: Path) -> None:
    gsm8k = Gsm8kDataConfig(path=str(test_data / "gsm8k/test.jsonl.gz"), prompt="r1_zero")
    rows = list(gsm8k.build(None).rows("train"))  # type: ignore[arg-type]
    assert rows[0]["completion"].endswith("</think> <answer> 18 </answer>")
    assert not any("The answer is" in r["completion"] or "reasoning" in r for r in rows)
    file = tmp_path / "math.jsonl"
    published = [
        {"problem": "Half?", "solution": r"It is $\boxed{\frac{1}{2}}$.", "level": "Level 1"},
        {"problem": "Two?", "answer": "2"},
    ]
    file.write_text("\n".join(map(json.dumps, published)))
    maths = list(MathDataConfig(path=str(file), prompt="r1_zero").build(None).rows("train"))  # type: ignore[arg-type]
    assert "completion" not in maths[1]
    for row in [*rows[::100], maths[0]]:
        assert r1_zero_reward_fn(row["completion"], row["answer"])["reward"] == 1.0
    boxed = list(MathDataConfig(path=str(file), prompt="question_only").build(None).rows("train"))  # type: ignore[arg-type]
    assert boxed[0]["prompt"] == "Half?"
    assert "completion" not in boxed[1]
    assert question_only_reward_fn(boxed[0]["completion"], boxed[0]["answer"])["reward"] == 1.0


def resolved(tmp_path: Path, dataset: str, *settings: str, algo: str = "grpo") -> RunConfig:
    row = {"question": "1 + 1?", "answer": "2\n#### 2"}
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps(row)] * 4))
    path = tmp_path / "rows.jsonl"
    return resolve(
        Registry(disabled=()),
        sugar={"trainer": {"name": algo}},
        settings=[f"dataset={dataset.replace('PATH', str(path))}", *settings],
    )


def test_a_data_set_brings_its_stop_strings_and_prompt_format(tmp_path: Path) -> None:
    config = resolved(tmp_path, "{name: gsm8k, path: PATH, prompt: r1_zero}", "trainer.eval_sampling.temperature=0")
    assert config.model.prompt_format == "raw"
    assert config.trainer.sampling.stop == config.trainer.eval_sampling.stop == ("</answer>",)
    assert resolved(tmp_path, "{name: gsm8k, path: PATH}").trainer.sampling.stop == FOLLOW_UPS
    assert resolved(tmp_path, "{name: gsm8k, path: PATH}").model.prompt_format == "auto"
    assert resolved(tmp_path, "{name: gsm8k, path: PATH, prompt: r1_zero}", algo="sft").model.prompt_format == "raw"


def test_what_the_user_says_replaces_what_a_data_set_brings(tmp_path: Path) -> None:
    config = resolved(
        tmp_path,
        "{name: gsm8k, path: PATH, prompt: r1_zero}",
        "trainer.sampling.stop=[END]",
        "model.prompt_format=auto",
    )
    assert config.trainer.sampling.stop == ("END",)
    assert config.model.prompt_format == "auto"


def test_of_several_data_sets_all_stop_strings_are_used(tmp_path: Path) -> None:
    sources = "{sources: [{name: gsm8k, path: PATH, prompt: r1_zero}, {name: gsm8k, path: PATH, label: b}]}"
    config = resolved(tmp_path, sources)
    assert config.trainer.sampling.stop == ("</answer>", *FOLLOW_UPS)
    assert config.model.prompt_format == "auto"


@pytest.mark.parametrize(
    ("reward", "settings", "expected"),
    [
        ("r1_zero", ("dataset={name: gsm8k, path: PATH}",), "prompt does not ask for it"),
        ("answer_tags", ("dataset={name: gsm8k, path: PATH}",), "prompt does not ask for it"),
        ("r1_zero", ("dataset={name: gsm8k, path: PATH, prompt: r1_zero}", "model.prompt_format=chat"), "opens the"),
        ("r1_zero", ("dataset={name: gsm8k, path: PATH, prompt: r1_zero}",), ""),
        ("r1_zero", ("dataset={name: gsm8k, path: PATH}", "reward.verifier.form_in_prompt=false"), ""),
        ("r1_zero", ("dataset={name: gsm8k, path: PATH, system_prompt: 'Use <answer></answer>.'}",), ""),
    ],
)
def test_a_reward_that_no_completion_could_earn_is_refused_by_a_dry_run(
    command: Callable, tmp_path: Path, reward: str, settings: tuple[str, ...], expected: str
) -> None:
    rows = [{"question": f"1 + {n}?", "answer": f"so\n#### {n + 1}"} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = [o for s in settings for o in ("--set", s.replace("PATH", str(tmp_path / "rows.jsonl")))]
    room = ("--set", "trainer.sampling.max_tokens=8")
    code, output = command("train", "--dry-run", "--algo", "grpo", "--reward", reward, *options, *room)
    assert (code, expected in output) == (2 if expected else 0, True), output


def test_only_the_form_that_is_needed_is_asked_for() -> None:
    assert R1ZeroConfig().format_markers == AnswerTagsConfig().format_markers == ("<answer>",)
    assert R1ZeroConfig(form_in_prompt=False).format_markers == ()
