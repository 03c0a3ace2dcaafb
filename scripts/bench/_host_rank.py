"""One rank of :mod:`.host_side`: torchrun starts it, rank 0 writes what it found."""

from __future__ import annotations

import json
import pickle
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.group import RankZero
from rlhf_core.plugins.contracts import CheckedAdvantage
from rlhf_core.rl.advantages import AdvantageStep, ForwardResults
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.rl.trainer import RolloutTrainer
from rlhf_core.runs.session import RunSession
from rlhf_core.training.rollout_batch import RolloutBatch, batch_of, cut_groups, share_bounds
from rlhf_core.types.rollouts import FinishReason, Prompt, PromptGroup, Rollout, Score
from rlhf_plugin_grpo.advantage import GroupNorm
from rlhf_plugin_grpo.advantage_config import GroupNormConfig
from rlhf_plugin_schedule.sampled_trace import sampled

SIZE, VOCABULARY = 8, 1000
TRACES = {"all": {}, "none in this step": {"trace_every": 100}}


class Counted(AcceleratedStrategy):
    """Counts the bytes of values that the other rank sends to this one."""

    counting, received = False, 0

    def exchange_objects(self, outgoing: Any) -> list[Any]:
        values = super().exchange_objects(outgoing)
        if self.counting:
            self.received += sum(len(pickle.dumps(value)) for n, value in enumerate(values) if n != self.rank)
        return values


def batch(ranks: Counted, count: int, tokens: int) -> RolloutBatch:
    """This rank's half of so many completions in groups of eight, of random ids."""
    rng = np.random.default_rng(ranks.rank)
    prompts = [Prompt(f"p{n}", ({"role": "user", "content": "?"},)) for n in range(count // SIZE)]
    groups = [PromptGroup(prompt, (1, 2), SIZE) for prompt in prompts]
    bounds = share_bounds(len(groups), ranks.world_size)
    own = groups[bounds[ranks.rank] : bounds[ranks.rank + 1]]
    rollouts = [rollout(group, n, rng, tokens) for group in own for n in range(SIZE)]
    scores = [Score(float(value)) for value in rng.normal(size=len(rollouts))]
    return batch_of(groups, cut_groups(own, rollouts, scores), 0)


def rollout(group: PromptGroup, index: int, rng: np.random.Generator, tokens: int) -> Rollout:
    ids = tuple(rng.integers(6, VOCABULARY, tokens).tolist())
    logprobs_T = rng.normal(-2, 1, tokens).astype(np.float32)
    text = "word " * tokens
    return Rollout(group.prompt.id, index, group.token_ids, ids, logprobs_T, 0, FinishReason.EOS, text, seed=index)


def step(ranks: Counted, given: RolloutBatch, settings: dict[str, Any], folder: Path) -> float:
    """Seconds from the scores to the written trace, both ranks."""
    config, unused = OnlineTrainerConfig(name="t", **settings), SimpleNamespace(critic=None)
    estimator = CheckedAdvantage(GroupNorm(GroupNormConfig.model_validate({})))
    stage: Any = AdvantageStep(estimator, None, unused, unused, unused, RankZero(ranks), config)  # pyright: ignore[reportArgumentType]
    source = SimpleNamespace(collector=None)
    choose = sampled(config, SimpleNamespace(advantages=stage, source=source))
    ranks.barrier("a step")
    start = time.perf_counter()
    traced = choose(1, given.groups)
    scored = stage.penalize_and_gather(given, ForwardResults(None, None))
    values = stage.estimate(scored, given).advantages.values
    session: Any = SimpleNamespace(strategy=ranks, dir=SimpleNamespace(path=folder))
    session.trace = partial(RunSession.trace, session)
    trainer: Any = SimpleNamespace(strategy=ranks, config=config, session=session)
    RolloutTrainer.trace_prompts(trainer, 1, "step", given, scored.own_scores, values, traced)
    ranks.barrier("a step")
    return time.perf_counter() - start


def main(count: int, tokens: int, rounds: int, out: str) -> None:
    torch.set_num_threads(1)
    ranks, cost, received = Counted(2, "cpu", 600), dict[str, float](), dict[str, float]()
    given = batch(ranks, count, tokens)
    for name, settings in TRACES.items():
        taken = []
        for _ in range(rounds):
            taken.append(step(ranks, given, settings, Path(out).parent))
        cost[name] = round(1e6 * min(taken) / count, 1)
        ranks.counting, ranks.received = True, 0
        step(ranks, given, settings, Path(out).parent)
        ranks.counting, received[name] = False, round(ranks.received / (count - len(given.rollouts)), 1)
    if ranks.rank == 0:
        figures = {"microseconds_per_completion": cost, "bytes_received_per_completion": received}
        Path(out).write_text(json.dumps(figures))
    ranks.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
