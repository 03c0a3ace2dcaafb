"""A sampled trace: what is written, what rank 0 is sent, and that metrics do not change."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetSettings, Prompt, PromptGroup
from rlhf_core.losses import Advantages
from rlhf_core.rl import OnlineTrainerConfig, RolloutTrainer
from rlhf_core.rl.trainer import OnlineTrainer
from rlhf_core.rollouts import Rollout
from rlhf_plugin_grpo.advantage import GroupNorm, LeaveOneOut, OptimalBaseline, ReinforcePP
from rlhf_plugin_grpo.advantage_config import OptimalBaselineConfig
from rlhf_plugin_schedule.checks import check_trace
from rlhf_plugin_schedule.sampled_trace import SampledTrace
from rlhf_testing.samples import make_rollouts

SIZES = (
    "threads=1", "trainer.steps=4", "trainer.eval_samples=0", "trainer.rollout_batch_size=16", "trainer.group_size=4",
    "trainer.sampling.max_tokens=8", "trainer.optimizer.learning_rate=0.001", "trainer.trace_prompts=1",
)  # fmt: skip


def completions(tokens: int = 0) -> tuple[list[PromptGroup], list[Rollout]]:
    """Four groups of two; some completions of different groups, and all of one group, are equal."""
    rollouts = make_rollouts(4, 2)[0]
    if tokens:
        logprobs_T = np.full(tokens, -0.3, np.float32)
        rollouts = [
            replace(r, completion_ids=(7,) * tokens, logprobs_T=logprobs_T, text="x" * tokens) for r in rollouts
        ]
    prompts = list(dict.fromkeys(r.prompt_id for r in rollouts))
    return [PromptGroup(Prompt(p, ({"role": "user", "content": "?"},)), (1, 2, 3), 2) for p in prompts], rollouts


class ByLength(GroupNorm):
    """Reads tokens, and says nothing of it."""

    def estimate(self, rollouts: Sequence[Rollout], scores: Any, group_ids: Any) -> Advantages:
        return Advantages([float(len(rollout.logprobs_T)) for rollout in rollouts])


def outlined(estimator: Any, rollouts: list[Rollout]) -> list[Rollout]:
    trace = SampledTrace(OnlineTrainerConfig(name="t"), object.__new__(estimator), several=True)
    return list(trace.outline(rollouts))


def test_what_rank_0_is_sent_gives_the_same_metrics() -> None:
    _, rollouts = completions()
    sent = pickle.loads(pickle.dumps(outlined(GroupNorm, rollouts)))
    assert RolloutTrainer.rollout_metrics(sent) == RolloutTrainer.rollout_metrics(rollouts)
    both = [*sent, *rollouts[:2]]  # groups that dynamic sampling has set aside are whole
    assert RolloutTrainer.rollout_metrics(both) == RolloutTrainer.rollout_metrics([*rollouts, *rollouts[:2]])
    assert RolloutTrainer.rollout_metrics(rollouts)["commonest_fraction"] > 1 / len(rollouts), "some are equal"


def test_no_token_and_no_text_is_sent() -> None:
    sizes = [len(pickle.dumps(outlined(GroupNorm, completions(n)[1]))) for n in (100, 10_000)]
    assert sizes[1] < sizes[0] + 100


def test_whole_groups_are_traced() -> None:
    groups, _ = completions()
    trace = SampledTrace(OnlineTrainerConfig(name="t", trace_completions=5, trace_every=2), GroupNorm, several=True)
    assert trace.groups(2, groups) == groups[:2]
    assert trace.groups(3, groups) == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_send_no_tokens_that_nothing_reads_without_a_setting(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = SimpleNamespace(estimator=object.__new__(GroupNorm))
    rank_zero = SimpleNamespace(ranks=SimpleNamespace(world_size=ranks))
    module = SimpleNamespace(critic=None)
    stage = SimpleNamespace(estimator=estimator, module=module, rank_zero=rank_zero, outline=list)
    parts: Any = SimpleNamespace(advantages=stage, source=SimpleNamespace(collector=None))
    monkeypatch.setattr("rlhf_core.rl.trainer.build_online", lambda *given: parts)
    trainer: Any = object.__new__(OnlineTrainer)
    trainer.config, trainer.inputs, trainer.strategy = OnlineTrainerConfig(name="t"), None, rank_zero.ranks
    trainer.ctx = SimpleNamespace(config=SimpleNamespace(dataset=DatasetSettings.model_construct()))
    trainer.traced_groups = lambda step, groups: groups
    trainer.build(None)
    groups, rollouts = completions(1000)
    assert trainer.traced_groups(1, groups) == groups, "all are traced"
    assert all((len(pickle.dumps(r)) < 1000) == (ranks == 2) for r in stage.outline(rollouts))


def test_an_estimator_that_reads_all_tokens_and_an_episode_are_sent_whole() -> None:
    _, rollouts = completions()
    assert outlined(ByLength, rollouts) == rollouts
    for estimator in (ReinforcePP, LeaveOneOut, OptimalBaseline):  # reads scores, groups, tokens of groups
        assert outlined(estimator, rollouts) != rollouts
    for critic, state in ((True, {}), (False, {"state_dict": dict})):
        stated = type("Stated", (OptimalBaseline,), {"estimate": OptimalBaseline.estimate, "by_group": True, **state})
        trace = SampledTrace(OnlineTrainerConfig(name="t"), stated(OptimalBaselineConfig()), True, critic)
        assert trace.outline(rollouts) == rollouts
    masked = [replace(r, mask_T=np.ones(len(r.completion_ids), bool)) for r in rollouts]
    assert outlined(GroupNorm, masked) == masked


def train(folder: Path, *settings: str, ranks: int = 2) -> list[dict[str, Any]]:
    """Metrics of the steps, without times."""
    words = [word for setting in (*SIZES, *settings) for word in ("--set", setting)]
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", "--algo", "grpo", "--reward", "verifier"]
    more = ["--dataset", "pocket/arithmetic", "--nproc", str(ranks), "--run-dir", str(folder)]
    result = subprocess.run([*command, *words, *more], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time"} for row in rows]


def traced(folder: Path) -> list[tuple[int, int, bool]]:
    """(Step, completions, whether tokens are kept) of each prompt."""
    rows = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    return [
        (row["step"], len(row["completions"]), "completion_ids" in row["completions"][0])
        for row in rows
        if row.get("event") == "prompt"
    ]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"trace_completions": 3}, "trace_completions 3 is less than a group of 4"),
        ({"trace_completions": 4, "adaptive_sampling": {"max_completions": 16}}, "less than a group of 16"),
        ({"trace_completions": 8, "trace_every": 0}, "has no effect with trainer.trace_every 0"),
    ],
)
def test_a_sample_without_a_completion_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_trace(OnlineTrainerConfig(name="t", group_size=4, **settings))
    check_trace(OnlineTrainerConfig(name="t", group_size=4, trace_completions=4))


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "most"), [(("trainer.trace_every=0",), 0), (("trainer.trace_completions=4",), 2)])
def test_groups_that_are_set_aside_are_traced_as_rarely(tmp_path: Path, settings: Sequence[str], most: int) -> None:
    more = ("trainer.dynamic_sampling.max_rounds=2", "trainer.steps=2", *settings)
    rows = train(tmp_path / "run", *more, ranks=1)
    assert min(row["dynamic_sampling/set_aside"] for row in rows) > 1
    trace = [json.loads(line) for line in (tmp_path / "run" / "trace.jsonl").read_text().splitlines()]
    assert sum(row["event"] == "set_aside" for row in trace) == most


@pytest.mark.slow
def test_a_run_of_two_ranks_has_the_same_metrics_and_weights_with_a_sampled_trace(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole")
    assert len(traced(tmp_path / "whole")) == 16
    assert train(tmp_path / "some", "trainer.trace_every=2", "trainer.trace_completions=9") == whole
    assert traced(tmp_path / "some") == [(2, 4, True), (2, 4, False), (4, 4, True), (4, 4, False)]
    one, two = ((tmp_path / name / "final" / "model.safetensors").read_bytes() for name in ("whole", "some"))
    assert one == two
