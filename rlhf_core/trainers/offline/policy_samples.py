"""What a policy that learns from data then writes: sampled on held-out prompts, with gold score, reward and KL.

Suffix: ``_T`` completion tokens of one rollout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlhf_core.context import BuildContext
from rlhf_core.data.datasets import Datasets
from rlhf_core.data.length_filter import admit
from rlhf_core.data.mixture import interleave
from rlhf_core.functional.comparison import win_rate
from rlhf_core.functional.kl import kl_value
from rlhf_core.models.load import LoadedModel
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.models.reference import Reference
from rlhf_core.trainers.common.config import PolicyTrainerConfig
from rlhf_core.trainers.common.metrics import gold_rows, rollout_metrics, score_metrics
from rlhf_core.trainers.common.micro_batches import in_order
from rlhf_core.trainers.common.policy_evaluator import Evaluation, gold_metrics
from rlhf_core.trainers.common.policy_evaluator import interleave as undo_shares
from rlhf_core.trainers.common.policy_module import PolicyModule
from rlhf_core.trainers.common.training_sample import make_item
from rlhf_core.trainers.online.generation import RolloutGenerator
from rlhf_core.trainers.online.rewards import RewardManager
from rlhf_core.types import PromptGroup, Rollout, Score


class PolicyTask(Protocol):
    """The part of an offline task that can be sampled from."""

    policy: LoadedModel
    formatter: Formatter
    datasets: Datasets


class Sampled:
    """Samples one completion per held-out prompt, the same seeds every time.

    Args:
        config: how many prompts, and how to sample.
        ctx: session, strategy and components.
        task: its policy is not trained yet.
    """

    def __init__(self, config: PolicyTrainerConfig, ctx: BuildContext, task: PolicyTask) -> None:
        self.config, self.strategy, self.policy, self.datasets = config, ctx.strategy, task.policy, task.datasets
        self.session, parts = ctx.session, ctx.session.parts
        own = ctx.with_(policy=task.policy, datasets=task.datasets)
        settings, prompts = task.datasets.settings, task.datasets.prompts("heldout")
        self.sampling = config.sampling.params()
        kept, dropped = admit(
            prompts,
            lambda p: task.formatter.encode(p.messages),
            limit=settings.max_prompt_tokens,
            context=task.policy.context,
            max_tokens=self.sampling.max_tokens,
            max_dropped_fraction=settings.max_dropped_fraction,
        )
        task.datasets.counts.update(dropped)
        order = interleave([p.source for p in kept], task.datasets.weights)[: config.sample_prompts]
        self.groups = [PromptGroup(kept[i], task.formatter.encode(kept[i].messages), 1) for i in order]
        run = ctx.config
        assert run.rollout is not None, "the defaults name a rollout engine"
        assert run.agent is not None, "the defaults name an agent"
        self.studio = RolloutGenerator(
            parts.build("agent", run.agent, own), parts.build("rollout", run.rollout, own), ctx.seed, parts.label
        )
        self.court = (
            None
            if run.reward is None
            else RewardManager(parts.build("reward", run.reward, own), {}, config.max_missing_fraction, parts.label)
        )
        self.reference = Reference.of(task.policy.model) if config.track_kl else None
        self.before: Evaluation | None = None
        self.after: Evaluation | None = None

    def run(self, step: int, version: int, module: Any) -> dict[str, float]:
        """Sample, measure and remember; metrics begin with ``eval/``. All ranks call it."""
        if not self.groups:
            return {}
        with self.strategy.gathered(module):
            rows = self._rows(version)
        rollouts: list[Rollout] = [r[0] for r in rows]
        metrics = {**rollout_metrics(rollouts), **gold_metrics(rows, "gold"), **kl_metrics(rollouts, rows)}
        metrics |= score_metrics([r[1] for r in rows if r[1] is not None])
        golds = [float(r[2]["value"]) for r in rows] if all(r[2] is not None for r in rows) else None
        found = Evaluation({f"eval/{k}": v for k, v in metrics.items()}, [r.text for r in rollouts], golds)
        self.session.counts.update({f"eval_score_{k}": n for k, n in found.missing.items()})
        self.before, self.after = (found if step == 0 else self.before), found
        self.session.samples(
            step,
            [
                {"prompt_id": g.prompt.id, "prompt": g.prompt.text, "completion": t}
                for g, t in zip(self.groups[:8], found.texts)
            ],
        )
        return dict(found.metrics)

    def _rows(self, version: int) -> list[tuple[Rollout, Score | None, Any, npt.NDArray[np.float32] | None]]:
        """(rollout, score, gold, reference logprobs) of every prompt, in order, over all ranks."""
        mine = self.groups[self.strategy.rank :: self.strategy.world_size]
        prompts = [g.prompt for g in mine]
        rollouts = self.studio.sample(mine, self.sampling, version, tag="eval") if mine else []
        scores: list[Any] = [None] * len(mine) if self.court is None else self.court.score(prompts, rollouts)
        golds = gold_rows(self.datasets, prompts, rollouts)
        return undo_shares(self.strategy.gather_objects(list(zip(rollouts, scores, golds, self._references(rollouts)))))

    def _references(self, rollouts: Sequence[Rollout]) -> list[Any]:
        if self.reference is None or not rollouts or self.sampling.temperature == 0:
            return [None] * len(rollouts)
        with self.reference.active() as model:
            room = PolicyModule(model, self.sampling.temperature)
            return room.logprobs([make_item(r, 0.0, False) for r in rollouts], in_order(self.config.micro_batch_size))

    def summary(self) -> dict[str, Any]:
        """Win rate by the gold score over the start, and examples, as of an on-policy run."""
        before, after = self.before, self.after
        if before is None or after is None:
            return {}
        rows = zip(self.groups, before.texts, after.texts)
        found: dict[str, Any] = {
            "examples": [{"prompt": g.prompt.text, "before": b, "after": a} for g, b, a in list(rows)[:3]]
        }
        if before.golds is not None and after.golds is not None:
            wins = win_rate(after.golds, before.golds)
            found |= {
                "gold_win_rate": wins.rate,
                "gold_win_rate_interval": [wins.low, wins.high],
                "gold_win_rate_prompts": wins.n,
            }
        return found

    def state_dict(self) -> dict[str, Any]:
        """The evaluation before training."""
        return {"before": None if self.before is None else self.before.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.before = Evaluation(**state["before"]) if state["before"] else None


def kl_metrics(rollouts: Sequence[Rollout], rows: Sequence[Any]) -> dict[str, float]:
    """KL(policy || reference) of sampled completions: ``kl`` per token by k3, ``kl_completion`` summed by k1, in nats.

    Args:
        rollouts: with the policy's own logprobs.
        rows: the last entry of each are its reference logprobs, None where nobody asked.
    """
    if not rollouts or any(r[-1] is None for r in rows):
        return {}
    k3 = np.concatenate([kl_value(r.logprobs_T, row[-1]) for r, row in zip(rollouts, rows)])
    k1 = [float((r.logprobs_T - row[-1]).sum()) for r, row in zip(rollouts, rows)]
    return {"kl": float(k3.mean()), "kl_completion": float(np.mean(k1))}
