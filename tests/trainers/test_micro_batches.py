"""Micro-batches by tokens: within the budget, of equal flops, the same each time, and no update depends on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.models import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.rl import OnlineTrainerConfig
from rlhf_core.training.forward import ALL, PLAIN, ForwardOptions
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import balance, by_tokens, flops, positions
from rlhf_core.training.policy_module import PolicyModule
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_plugin_grpo.loss import GrpoClip
from tests.ddp.matrix import captured

from .conftest import ONLINE, Train

WIDTH = 64
PADDED_SHARED = ForwardOptions(packing=False)


def items(seed: int = 0, prompts: int = 6, group: int = 4) -> list[TrainingSample]:
    rng = np.random.default_rng(seed)
    rows: list[TrainingSample] = []
    for p in range(prompts):
        prompt = tuple(int(t) for t in rng.integers(6, 700, int(rng.integers(4, 40))))
        for g in range(group):
            ids = tuple(int(t) for t in rng.integers(6, 700, int(rng.integers(1, 60))))
            rows.append(TrainingSample(f"{p}#{g}", prompt, ids, np.ones(len(ids), bool), np.ones(len(ids), np.float32)))
    return rows


def test_positions_are_what_a_forward_computes() -> None:
    rows = [TrainingSample(str(n), (1, 2, 3), (1,) * n, np.ones(n, bool), np.ones(n, np.float32)) for n in (2, 5)]
    assert positions(rows, ALL) == 3 + 2 + 5
    assert positions(rows, ForwardOptions(share_prefix=False)) == 5 + 8
    assert positions(rows, PLAIN) == 2 * 8
    assert positions(rows, PADDED_SHARED) == 3 + 2 * 5


def test_work_counts_matrix_products_and_attention() -> None:
    """Against a count by hand: a prompt of 3 and completions of 2 and 4, prompt read once."""
    rows = [TrainingSample(str(n), (1, 2, 3), (1,) * n, np.ones(n, bool), np.ones(n, np.float32)) for n in (2, 4)]
    pairs = 3 * 3 // 2 + (2 * 3 + 2 * 2 // 2) + (4 * 3 + 4 * 4 // 2)
    assert flops(rows, True, WIDTH) == pytest.approx(3 + 2 + 4 + pairs / (6 * WIDTH))
    assert flops(rows, False, WIDTH) > flops(rows, True, WIDTH)


@pytest.mark.parametrize("paths", [ALL, ForwardOptions(share_prefix=False), PADDED_SHARED, PLAIN])
@pytest.mark.parametrize("budget", [60, 200, 100_000])
@pytest.mark.parametrize("seed", range(5))
def test_every_item_once_and_within_the_budget(paths: ForwardOptions, budget: int, seed: int) -> None:
    rows = items(seed)
    parts = by_tokens(rows, budget, paths, WIDTH)
    assert sorted(i for part in parts for i in part) == list(range(len(rows)))
    for part in parts:
        assert len(part) == 1 or positions([rows[i] for i in part], paths) <= budget
    assert parts == by_tokens(items(seed), budget, paths, WIDTH), "the same batch is cut the same way"


def test_completions_of_a_prompt_stay_together() -> None:
    rows = items()
    for part in by_tokens(rows, 400, ALL, WIDTH):
        names = [rows[i].name.split("#")[0] for i in part]
        assert all(names.count(p) == 4 for p in names)


def test_work_is_shared_better_than_by_count() -> None:
    """Ragged lengths: the dearest micro-batch, which sets memory and waiting, comes close to the mean."""
    rows = items(prompts=24)
    parts = by_tokens(rows, 600, ALL, WIDTH)
    by_work = [flops([rows[i] for i in part], True, WIDTH) for part in parts]
    in_order = [flops(list(c), True, WIDTH) for c in np.array_split(np.array(rows, object), len(parts))]
    assert max(by_work) / np.mean(by_work) < 1.15
    assert max(by_work) < max(in_order)


class Another(LocalStrategy):
    """As if another rank had to make so many micro-batches."""

    def max_over_ranks(self, value: int) -> int:
        return max(value, 3)


def test_nothing_is_left_out_whatever_another_rank_makes() -> None:
    """Two long items and many short ones: three parts of equal flops would break the budget, two do not."""

    def of(name: str, prompt: int, own: int) -> TrainingSample:
        return TrainingSample(name, (7,) * prompt, (9,) * own, np.ones(own, bool), np.ones(own, np.float32))

    rows = [*(of(f"long{n}", 10 + n, 190) for n in range(2)), *(of(f"short{n}", 20 + n, 12) for n in range(8))]
    found: list[dict[str, torch.Tensor]] = []
    for strategy in (LocalStrategy(), Another()):
        gradient = captured(strategy)
        module = strategy.prepare(PolicyModule(load_policy(ModelConfig()).model, 1.0, ALL))
        learner = Learner(
            module,
            GrpoClip(0.2, 0.2),
            strategy,
            OnlineTrainerConfig(name="t"),
            1,
            micro_batcher=lambda items: by_tokens(items, 520, ALL, WIDTH),
        )
        learner.update(rows)
        found.append(gradient)
    assert max(float((found[0][k] - found[1][k]).abs().max()) for k in found[0]) < 1e-6


def test_balance() -> None:
    assert balance([5, 4, 3, 3, 3], 2) == [[0, 3], [1, 2, 4]]
    assert balance([1.0], 2) == [[0], []]


@pytest.mark.slow
def test_a_run_by_tokens_makes_the_same_updates(train: Train) -> None:
    change = {
        "trainer": {
            "steps": 2,
            "rollout_batch_size": 16,
            "eval_samples": 0,
            "epochs_per_rollout_batch": 2,
            "optimizer": {"eps": 1e-3},
        }
    }
    train(ONLINE, change=change, run="count")
    train(ONLINE, change={"trainer": {**change["trainer"], "micro_batch_tokens": 90}}, run="tokens")
    rows = [[r for r in read_jsonl(train.folder / run / "metrics.jsonl") if "loss" in r] for run in ("count", "tokens")]
    assert len(rows[0]) == len(rows[1]) > 0
    for a, b in zip(*rows):
        for name in ("loss", "grad_norm", "entropy", "kl", "importance_ratio"):
            assert a[name] == pytest.approx(b[name], abs=2e-5), name
