"""Settings that change over steps: their values, what they change, resume, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import rlhf_core
from rlhf_core.config import ConfigError, UserError
from rlhf_core.data import read_jsonl
from rlhf_plugin_schedule.adaptive import AdaptiveEntropy
from rlhf_plugin_schedule.schedules import Schedule

TEMPERATURE = "trainer.sampling.temperature"
ENTROPY = "trainer.entropy_coefficient"
ADAPTIVE = {"setting": ENTROPY, "shape": "adaptive", "from": 0.01, "to": 0.03}


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("linear", [1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.5]),
        ("cosine", [1.0, 1.0, 0.92678, 0.75, 0.57322, 0.5, 0.5]),
        ("step", [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5]),
    ],
)
def test_the_values_of_a_schedule(shape: str, values: Sequence[float]) -> None:
    one = Schedule.from_settings({"setting": "x", "from": 1.0, "to": 0.5, "start": 2, "end": 6, "shape": shape})
    assert [one.value(step, 9.0) for step in range(1, 8)] == pytest.approx(values, abs=1e-5)
    assert Schedule.from_settings({"setting": "x", "to": 0.5, "end": 3}).value(1, 9.0) == 9.0
    assert Schedule.from_settings({"setting": "x", "from": "1", "to": "0.5", "end": 3}).value(2, 9.0) == 0.75


def train(folder: Path, steps: int, schedules: Sequence[Mapping[str, Any]], **settings: Any) -> Any:
    sizes = {
        "rollout_batch_size": 16,
        "group_size": 4,
        "sampling": {"max_tokens": 4},
        "eval_samples": 0,
        "optimizer": {"learning_rate": 1e-3},
    }
    return rlhf_core.train(
        "grpo",
        dataset="pocket/arithmetic",
        reward="composite",
        settings={
            "reward.parts": {
                "loose": {"reward": "random", "weight": 1.0},
                "strict": {"reward": {"name": "random", "rate": 0.4}, "weight": 0.0},
            },
            "trainer": {**sizes, "steps": steps, "schedules": [dict(one) for one in schedules]},
            "threads": 1,
            **settings,
        },
        run_dir=folder,
        progress=False,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    steps = [row for row in read_jsonl(folder / "metrics.jsonl") if "tokens_generated" in row]
    return [{key: value for key, value in row.items() if key != "time"} for row in steps]


SCHEDULES = (
    {"setting": TEMPERATURE, "from": 1.0, "to": 0.25, "end": 4},
    {"setting": "trainer.kl.coefficient", "from": 0.0, "to": 0.5, "end": 3, "shape": "step"},
    {"setting": "trainer.entropy_coefficient", "from": 0.0, "to": 0.1, "end": 4},
    {"setting": "reward.parts.strict.weight", "from": 0.0, "to": 1.0, "end": 3, "shape": "step"},
    {"setting": "reward.parts.loose.weight", "from": 1.0, "to": 0.0, "end": 3, "shape": "step"},
)


def test_each_step_has_its_values_and_a_resumed_run_the_same(tmp_path: Path) -> None:
    train(tmp_path / "whole", 4, SCHEDULES)
    whole = rows(tmp_path / "whole")
    assert [row[f"schedule/{TEMPERATURE}"] for row in whole] == [1.0, 0.75, 0.5, 0.25]
    assert all(row["drift/mean_abs"] < 1e-4 for row in whole), "engine and trainer have the same temperature"
    weights = [(row["reward/part/loose/weighted"], row["reward/part/strict/weighted"]) for row in whole]
    assert [(loose != 0, strict != 0) for loose, strict in weights[:2]] == [(True, False)] * 2
    assert [loose for loose, _ in weights[2:]] == [0.0, 0.0]
    run = train(tmp_path / "cut", 2, SCHEDULES)
    run.resume(settings={"trainer.steps": 4})
    assert rows(tmp_path / "cut") == whole


def test_a_verifier_changes_its_mode_and_evaluations_do_not(tmp_path: Path) -> None:
    mode = {"setting": "reward.verifier.mode", "from": "lenient", "to": "hash", "end": 3}  # no answer follows ####
    verifier = {"reward": {"name": "verifier", "verifier": {"name": "gsm8k"}, "workers": 1}, "reward.parts": None}
    train(tmp_path / "run", 3, [mode], **verifier, **{"trainer.sampling.max_tokens": 16, "trainer.eval_samples": 32})
    steps = rows(tmp_path / "run")
    assert [row["schedule/reward.verifier.mode"] for row in steps] == [0.0, 0.0, 1.0]
    right = [row["reward/part/answer"] for row in steps]
    assert max(right[:2]) > 0 == right[2]
    found = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "eval/reward/mean" in row]
    assert [row["eval/reward/mean"] > 0 for row in found] == [True] * len(found) != []


def test_examples_before_the_prompts_grow_fewer(tmp_path: Path) -> None:
    file = tmp_path / "examples.jsonl"
    file.write_text('{"prompt": "What is 1 + 1?", "completion": "The answer is 2."}\n' * 2)
    shots = {"setting": "dataset.shots", "examples": str(file), "from": 2, "to": 0, "end": 3}
    train(tmp_path / "run", 3, [shots], **{"trainer.eval_samples": 2, "trainer.trace_prompts": 8})
    assert [row["schedule/dataset.shots"] for row in rows(tmp_path / "run")] == [2.0, 1.0, 0.0]
    traced = [row for row in read_jsonl(tmp_path / "run" / "trace.jsonl") if row.get("stage") == "step"]
    lengths = [
        {len(row["prompt_ids"]) for row in traced if row["step"] == n and "prompt_ids" in row} for n in (1, 2, 3)
    ]
    assert min(lengths[0]) > max(lengths[1]) > max(lengths[2]), lengths
    train(tmp_path / "without", 1, [], **{"trainer.eval_samples": 2})
    first = [
        {key: value for key, value in row.items() if key.startswith("eval/")}
        for name in ("run", "without")
        for row in read_jsonl(tmp_path / name / "metrics.jsonl")
        if row["step"] == 0
    ]
    assert len(first) == 2
    assert first[0] == first[1] != {}, "held-out prompts have no examples before them"


def test_evaluations_keep_what_the_configuration_says(tmp_path: Path) -> None:
    strict = {"setting": "reward.parts.strict.weight", "from": 1.0, "to": 1.0, "start": 0, "end": 1}
    train(tmp_path / "run", 2, [strict], **{"trainer.eval_samples": 4, "trainer.eval_every": 1})
    found = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "eval/reward/mean" in row]
    assert [row["eval/reward/part/strict/weighted"] for row in found] == [0.0] * len(found) != []


def test_the_coefficient_of_the_kl_takes_part_in_the_loss(tmp_path: Path) -> None:
    from_start = {"setting": "trainer.kl.coefficient", "from": 5.0, "to": 0.0, "start": 0, "end": 3, "shape": "step"}
    train(tmp_path / "with", 3, [from_start])
    train(tmp_path / "without", 3, [])
    with_kl, without = rows(tmp_path / "with"), rows(tmp_path / "without")
    assert with_kl[0]["grad_norm"] == pytest.approx(without[0]["grad_norm"]), "the policy is the reference yet"
    assert with_kl[1]["grad_norm"] > 1.05 * without[1]["grad_norm"]


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ({"setting": TEMPERATURE, "to": 0.5, "start": 3, "end": 2}, "ends at step 2, before it begins at 3"),
        ({"setting": TEMPERATURE, "to": 0.5, "start": 4, "end": 9}, "begins at step 4"),
        ({"setting": TEMPERATURE, "to": 0.0, "end": 2}, "a temperature above 0"),
        ({"setting": TEMPERATURE, "to": -1.0, "end": 2}, "-1 is no value of it"),
        (
            {"setting": "trainer.sampling.temprature", "to": 0.5, "end": 2},
            "did you mean 'trainer.sampling.temperature'",
        ),
        ({"setting": "trainer.group_size", "to": 8, "end": 2}, "the setting does not change during a run"),
        ({"setting": "reward.parts.loos.weight", "to": 0.5, "end": 2}, "there is no such setting"),
        ({"setting": "trainer.overlong.weight", "to": 0.5, "end": 2}, "trainer.overlong.cache above 0"),
        ({"setting": TEMPERATURE, "too": 0.5, "end": 2}, "too"),
        ({"setting": TEMPERATURE, "to": 0.5}, "a schedule of shape linear needs end"),
        ({"setting": TEMPERATURE, "to": 0.5, "end": 2, "target": 1.0}, "target has no effect with shape linear"),
        ({"setting": ENTROPY, "to": 1.0, "shape": "adaptive"}, "a schedule of shape adaptive needs target"),
        ({"setting": ENTROPY, "to": 1.0, "shape": "adaptive", "target": 1, "end": 2}, "end has no effect"),
        ({"setting": ENTROPY, "from": 0.2, "to": 0.1, "shape": "adaptive", "target": 1}, "its most, 0.1, is not above"),
        ({"setting": ENTROPY, "to": 0.0, "shape": "adaptive", "target": 1}, "its most, 0.0, is not above 0"),
        ({"setting": ENTROPY, "from": "low", "to": 0.1, "shape": "adaptive", "target": 1}, "it has words as values"),
        ({"setting": TEMPERATURE, "to": 2.0, "shape": "adaptive", "target": 1}, "no measure tells it how to adapt"),
        ({"setting": TEMPERATURE, "to": "strict", "end": 2}, "strict is no value of it"),
        ({"setting": "dataset.shots", "from": 2, "to": 0, "end": 2}, "examples belong together"),
        ({"setting": "dataset.shots", "from": 2, "to": 0, "end": 2, "examples": "no.jsonl"}, "no.jsonl"),
    ],
)
def test_schedules_that_cannot_work_are_refused(schedule: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        train(tmp_path / "run", 4, [schedule])
    assert says in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_run_of_one_step_may_adapt(tmp_path: Path) -> None:
    train(tmp_path / "run", 1, [{**ADAPTIVE, "target": 1.0}])
    assert len(rows(tmp_path / "run")) == 1


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_the_coefficient_of_the_kl_is_refused_with_a_critic(where: str, tmp_path: Path) -> None:
    one = {"setting": "trainer.kl.coefficient", "from": 0.0, "to": 0.5, "end": 3}
    kl = {"trainer.kl.where": where, "trainer.kl.estimator": "k1"}
    with pytest.raises(ConfigError, match="an algorithm without a critic"):
        train(tmp_path / "run", 4, [one], **{"advantage.name": "gae", **kl})


def test_the_coefficient_rises_under_the_target_and_falls_over_it() -> None:
    """As TRL 1.16 does it: ``entropy_coef`` and the last entropy, which is infinite at first."""
    one = AdaptiveEntropy(Schedule.from_settings({**ADAPTIVE, "target": 1.0, "delta": 0.01}), 0.01)
    values: list[float] = []
    for entropy in (2.0, 0.9, 1.0, 0.5, 0.4, 1.1, 0.8):
        values.append(one.value)
        one.observe({"entropy": entropy})
    one.observe({})  # nothing was trained on
    assert [*values, one.value] == pytest.approx([0.0, 0.0, 0.01, 0.02, 0.03, 0.03, 0.0, 0.03])


@pytest.mark.slow
@pytest.mark.parametrize(("target", "applied"), [(50.0, [0.0, 0.015, 0.02, 0.025]), (1e-6, [0.0, 0.0, 0.0, 0.0])])
def test_the_entropys_coefficient_adapts_and_a_resumed_run_goes_on(
    tmp_path: Path, target: float, applied: list[float]
) -> None:
    schedules = [{**ADAPTIVE, "target": target}]
    more = {"trainer.drop_constant_groups": False}
    train(tmp_path / "whole", 4, schedules, **more)
    whole = rows(tmp_path / "whole")
    assert [row[f"schedule/{ENTROPY}"] for row in whole] == pytest.approx(applied)
    train(tmp_path / "cut", 2, schedules, **more).resume(settings={"trainer.steps": 4})
    assert rows(tmp_path / "cut") == whole
    if applied[-1]:
        train(tmp_path / "plain", 2, [], **more)
        plain = rows(tmp_path / "plain")
        assert plain[0]["loss"] == whole[0]["loss"]
        assert whole[1]["loss"] == pytest.approx(plain[1]["loss"] - 0.015 * plain[1]["entropy"], abs=1e-7)


def test_two_schedules_of_a_setting_and_sampling_ahead_are_refused(tmp_path: Path) -> None:
    one = {"setting": TEMPERATURE, "to": 0.5, "end": 2}
    with pytest.raises(ConfigError, match="two schedules"):
        train(tmp_path / "run", 4, [one, one])
    with pytest.raises(ConfigError, match="max_staleness"):
        train(tmp_path / "run", 4, [one], **{"trainer.rollouts.max_staleness": 1})
