"""`rlhf simulate`: limits that any step keeps, decoding against one round at a time, published times, bad input."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlhf_core.cli.main import cli
from rlhf_core.config import UserError
from rlhf_core.models import ModelConfig, ModelError
from rlhf_plugin_preflight.cost.hardware import GPUS, Gpu, Shape, shape_of
from rlhf_plugin_preflight.cost.published import FACTORS, fitted, rows
from rlhf_plugin_preflight.cost.rollout import Engine, Lengths
from rlhf_plugin_preflight.cost.step import Layout, Work, simulate

SHAPE = Shape(parameters=8e9, layers=36, attention=4096, hidden=4096, kv=147456)
H100 = GPUS["h100"]
FREE = dataclasses.replace(H100, link=math.inf, network=math.inf)
WORK = Work(completions=512, group=8, prompt=256, lengths=Lengths(1000, 4096), updates=2)


def step(layout: Layout, gpu: Gpu = H100, **changes: Any) -> Any:
    return simulate(SHAPE, gpu, dataclasses.replace(WORK, **changes), layout, FACTORS)


def test_on_one_gpu_a_step_is_the_sum_of_its_parts() -> None:
    one = step(Layout(1), reward_s=3.0, host_s=1.0)
    assert one.sync == 0
    assert one.seconds == pytest.approx(one.rollout + 3.0 + 1.0 + one.forwards + one.update)
    assert one.idle == pytest.approx(4.0 / one.seconds)


def test_one_completion_is_counted_by_hand() -> None:
    lengths = Lengths(100, 100, spread=0.0)
    one = step(Layout(1), completions=1, group=1, lengths=lengths, updates=1, forwards=1, recompute=False)
    rate, peak = H100.bandwidth * FACTORS.memory, H100.flops * FACTORS.mfu
    rounds = 100 * ((2 * 8e9 + SHAPE.kv * (256 + 50)) / rate + FACTORS.round_s + FACTORS.completion_s)
    assert one.rollout == pytest.approx(rounds + 2 * 8e9 * 256 / peak)
    forward = (2 * 8e9 * 356 + 2 * 36 * 4096 * 356**2) / peak
    assert one.forwards == pytest.approx(forward)
    assert one.update == pytest.approx(3 * forward + 28 * 8e9 / rate)


@pytest.mark.parametrize("spread", [0.0, 0.7, 1.2])
@pytest.mark.parametrize("completions", [8, 512, 4096])
@pytest.mark.parametrize("serve", [False, True])
def test_twice_the_gpus_never_make_a_step_slower_where_links_are_free(
    spread: float, completions: int, serve: bool
) -> None:
    lengths, seconds = Lengths(1000, 4096, spread), list[float]()
    for half in (1 << k for k in range(10)):
        layout = Layout(half, half, staleness=1) if serve else Layout(2 * half)
        seconds.append(step(layout, FREE, completions=completions, lengths=lengths).seconds)
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(seconds))
    assert seconds[0] > seconds[-1]


def test_one_long_completion_bounds_the_step_on_any_number_of_gpus() -> None:
    few, many = (step(Layout(n), lengths=Lengths(300, 30000, spread=1.5)) for n in (512, 1024))
    longest = Lengths(300, 30000, spread=1.5).drawn(512)[0]
    alone = longest * (2 * 8e9 / (H100.bandwidth * FACTORS.memory) + FACTORS.round_s)
    assert longest > 10000
    assert few.seconds >= many.seconds >= many.rollout >= alone
    assert many.rollout == pytest.approx(alone, rel=0.1)
    assert many.idle > 0.8
    even = step(Layout(512), lengths=Lengths(300, 30000, spread=0.0))
    assert even.rollout < few.rollout / 20


def test_a_batch_ahead_hides_the_shorter_of_rollout_and_update() -> None:
    turns, ahead = (step(Layout(4, 4, staleness=s), reward_s=2.0) for s in (0, 1))
    first, second = ahead.rollout + 2.0, ahead.forwards + ahead.update
    assert ahead.seconds == pytest.approx(max(first, second) + ahead.sync)
    assert turns.seconds == pytest.approx(first + second + ahead.sync)
    assert ahead.idle < turns.idle


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ({"train": 8, "tensor": 3}, "engines of 3 GPUs do not divide the 8"),
        ({"train": 8, "together": 3}, "3 GPUs for one sequence do not divide"),
        ({"train": 8, "staleness": 1}, "nothing is sampled ahead"),
        ({"train": 0}, "at least 1"),
    ],
)
def test_layouts_that_cannot_be_are_refused(layout: dict[str, int], why: str) -> None:
    with pytest.raises(UserError) as refused:
        Layout(**layout)
    assert why in str(refused.value.why)


def test_several_batches_ahead_hide_the_longest_completions() -> None:
    one, eight = (step(Layout(64, 64, staleness=s), lengths=Lengths(1000, 30000, 1.0)) for s in (1, 8))
    assert eight.rollout < one.rollout / 2


@pytest.mark.parametrize("slots", [3, 40])
def test_decoding_equals_one_round_at_a_time(slots: int) -> None:
    lengths = [float(round(n)) for n in Lengths(60, 200).drawn(20)][::-1]
    mean = sum(lengths) / 20
    memory = 2 * 8e9 + (slots + 0.5) * SHAPE.kv * (30 + mean)
    engine = Engine(SHAPE, dataclasses.replace(H100, memory=memory), FACTORS, share=1.0)
    waiting, running, seconds = list(lengths), list[list[float]](), 0.0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append([waiting.pop(0), 0.0])
        seconds += engine.rounds(1, len(running), sum(30 + done for _, done in running))
        running = [[length, done + 1] for length, done in running if done + 1 < length]
    assert engine.seconds(lengths, 30) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(
    ("mean", "limit", "spread"), [(300, 8192, 0.7), (3200, 4096, 0.7), (50, 50, 0.0), (900, 1000, 2)]
)
def test_lengths_have_the_mean_and_the_limit(mean: float, limit: int, spread: float) -> None:
    drawn = Lengths(mean, limit, spread).drawn(2000)
    assert sum(drawn) / 2000 == pytest.approx(mean, rel=1e-3)
    assert drawn == sorted(drawn, reverse=True)
    assert 1 <= drawn[-1] <= drawn[0] <= limit


def test_adapters_save_the_gradients_of_the_base_and_the_sync() -> None:
    full, adapters = (step(Layout(4, 4), trained=share) for share in (1.0, 0.01))
    assert adapters.sync == pytest.approx(full.sync / 100)
    assert adapters.update < 0.8 * full.update


@pytest.mark.slow
def test_the_factors_are_those_that_the_fit_finds() -> None:
    assert fitted() == FACTORS
    assert {row.system for row in rows() if row.fitted} == {"NeMo RL 0.4"}


@pytest.mark.slow
def test_published_steps_are_as_far_off_as_the_docs_say() -> None:
    fit = [row.ratio for row in rows() if row.fitted]
    held = [row.ratio for row in rows() if row.is_dense and not row.fitted]
    experts = [row.ratio for row in rows() if not row.is_dense]
    assert len({row.system for row in rows() if not row.fitted}) == 3
    assert all(0.9 <= ratio <= 1.06 for ratio in fit)
    assert all(0.58 <= ratio <= 2.4 for ratio in held)
    assert all(0.19 <= ratio <= 0.95 for ratio in experts), "of experts a lower bound"
    assert all(0 < row.step.utilisation < FACTORS.mfu and 0 <= row.step.idle < 1 for row in rows())


@pytest.mark.slow
def test_what_sampling_ahead_gains_is_too_small() -> None:
    """Of rows in turn and ahead on as many GPUs: in doubt the simulation does not promise a gain."""
    dense = [row for row in rows() if row.is_dense]
    pairs = [(a, b) for a, b in pairwise(dense) if a.layout.gpus == b.layout.gpus and b.layout.staleness]
    assert len(pairs) == 6
    published = [a.published / b.published for a, b in pairs]
    simulated = [a.step.seconds / b.step.seconds for a, b in pairs]
    assert (round(min(published), 1), round(max(published), 1)) == (1.3, 2.8)
    assert (round(min(simulated), 1), round(max(simulated), 1)) == (1.0, 2.1)
    assert all(ours < theirs for ours, theirs in zip(simulated, published, strict=True))


EXPERTS = {
    "model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32,
    "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "vocab_size": 99,
}  # fmt: skip


def test_a_round_reads_the_experts_that_its_tokens_take(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(EXPERTS))
    shape = shape_of(ModelConfig.model_validate({"path": str(tmp_path)}))
    assert (shape.attention, shape.kv, shape.picked) == (128, 2 * 2 * 2 * 32 * 2, 0.25)
    assert shape.experts == 2 * 8 * 3 * 64 * 16
    assert shape.active == shape.parameters - 0.75 * shape.experts
    assert shape.read(1) == pytest.approx(2 * shape.active)
    assert shape.read(1) < shape.read(4) < shape.read(100) == pytest.approx(2 * shape.parameters, rel=1e-6)
    said = CliRunner().invoke(cli, [*RUN[:3], "--model", str(tmp_path)], catch_exceptions=False).output
    assert "a mixture of experts: a lower bound" in said


RUN = ("simulate", "--algo", "grpo", "--model", "qwen3-8b")


def test_a_run_says_what_is_simulated() -> None:
    sets = ("trainer.rollout_batch_size=512", "trainer.train_batch_size=256", "trainer.sampling.max_tokens=1024")
    words = [word for setting in sets for word in ("--set", setting)]
    result = CliRunner().invoke(cli, [*RUN, *words, "--gpus", "1,8,1024", "--json"], catch_exceptions=False)
    said = json.loads(result.stdout)
    assert said["simulated"] is True
    assert said["work"]["completions"] == 512
    assert (said["work"]["updates"], said["work"]["forwards"]) == (2, 2)
    record = json.loads((Path(__file__).parents[3] / "docs/bench/host_side.json").read_text())["cases"].values()
    measured = max(case["results"]["microseconds_per_completion"]["all"] for case in record)
    assert said["work"]["host_s"] == pytest.approx(512e-6 * measured, rel=0.05)
    assert [row["layout"]["train"] for row in said["rows"]] == [1, 8, 1024]
    assert said["rows"][0]["seconds"] > said["rows"][1]["seconds"] > said["rows"][2]["seconds"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--gpu", "h10"), "no GPU 'h10' is known"),
        (("--gpus", "8,many"), "are not numbers of GPUs"),
        (("--gpus", "0"), "are not numbers of GPUs"),
        (("--gpus", "1", "--serve", "0.5"), "none train"),
        (("--gpus", "8", "--tensor", "2"), "needs servers"),
        (("--mean-tokens", "999999"), "at most"),
        (("--gpus", "8", "--gpu", "l40s", "--model", "qwen3-32b"), "does not hold the weights"),
        (("--sync-rate", "fast"), "not an amount of memory"),
        (("--algo", "sft"), "samples nothing"),
        (("--model", "./nothing-here"), "nothing-here"),
        (("--staleness", "1", "--gpus", "8", "--serve", "0.5", "--tensor", "8"), "none train"),
    ],
)
def test_bad_input_is_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises((UserError, ModelError), match=why) as refused:
        CliRunner().invoke(cli, [*RUN, *words], catch_exceptions=False)
    assert refused.value.exit_code == 2
