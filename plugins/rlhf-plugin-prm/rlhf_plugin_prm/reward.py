"""The reward ``prm``: a probability per step, and one number made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rlhf_core.api import BuildContext, Message, ModelConfig, Sample, Score, ScoreStatus, Tool
from rlhf_core.sdk import context_length
from rlhf_plugin_prm.net import Ids, StepEncoder, step_probabilities
from rlhf_plugin_prm.steps import Step, split_steps
from rlhf_plugin_prm.store import load_model
from rlhf_plugin_reward.config import device_of

if TYPE_CHECKING:
    from rlhf_plugin_prm.reward_config import Aggregate, PrmRewardConfig
    from rlhf_plugin_reward.net import RewardNet

Floats = npt.NDArray[np.float64]
StepQuery = tuple[Sequence[Message], str, Sequence[Step], Sequence[Tool]]
"""Prompt, solution, its steps, and the prompt's tools."""


def aggregate(right_T: Floats, how: Aggregate) -> float:
    """One number in [0, 1] from the probabilities that each step is right: ``min``, ``mean``, ``product``, ``last``.

    The product is the probability that all are, were they independent (Lightman et al. 2023, appendix F).
    """
    match how:
        case "min":
            return float(right_T.min())
        case "mean":
            return float(right_T.mean())
        case "product":
            return float(right_T.prod())
        case "last":
            return float(right_T[-1])


class StepReward:
    """Scores every step of a completion at its last token.

    ``parts`` are ``step_1``, ``step_2`` ..., the probabilities, and ``end_1``, ``end_2`` ..., the character of the
    completion where each step ends. An outcome model has one of each.

    Args:
        net: with one head.
        encoder: of its tokenizer.
        config: how to cut, read and combine; ``split`` is set.
        every_step: read the head at each step, not at the last alone.
    """

    def __init__(self, net: RewardNet, encoder: StepEncoder, config: PrmRewardConfig, every_step: bool) -> None:
        self.net, self.encoder, self.config, self.every_step = net, encoder, config, every_step

    @classmethod
    def from_config(cls, config: PrmRewardConfig, ctx: BuildContext) -> StepReward:
        """Load the model to where the policy is."""
        return cls.load(config, device_of(ctx))

    @classmethod
    def load(cls, config: PrmRewardConfig, device: str) -> StepReward:
        """Load what ``prm`` or ``orm`` trained."""
        net, tokenizer, card = load_model(config.path)
        encoder = StepEncoder(
            tokenizer, min(config.max_length or card.max_length, context_length(net.trunk, ModelConfig()))
        )
        every_step = card.target == "steps" or config.read == "steps"
        config = config.model_copy(update={"split": config.split or card.split})
        return cls(net.to(device), encoder, config, every_step)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample; without a step, with too many tokens, or not finite it is an error, not a number."""
        assert self.config.split is not None, "load() sets it"
        cut = [split_steps(s.completion, self.config.split) for s in samples]
        steps_read = [steps if self.every_step else steps[-1:] for steps in cut]
        queries = [(s.before, s.completion, steps, s.prompt.tools) for s, steps in zip(samples, steps_read)]
        return [self._score(steps, right_T) for steps, right_T in zip(steps_read, self.probabilities(queries))]

    def probabilities(self, queries: Sequence[StepQuery]) -> list[Floats | str]:
        """That each of the given steps is right, one array per solution; or why there is none."""
        results: dict[int, Floats | str] = {}
        rows: dict[int, tuple[Ids, tuple[int, ...]]] = {}
        for n, query in enumerate(queries):
            try:
                rows[n] = self.encoder.encode(*query)[:2]
            except ValueError as error:
                results[n] = str(error)
        ids, places = [r[0] for r in rows.values()], [r[1] for r in rows.values()]
        for n, right_T in zip(rows, step_probabilities(self.net, ids, places, self.config.batch_tokens)):
            whole = bool(np.isfinite(right_T).all())
            results[n] = right_T if whole else f"the process reward model returned {right_T.tolist()}"
        return [results[n] for n in range(len(queries))]

    def _score(self, steps: Sequence[Step], right_T: Floats | str) -> Score:
        if isinstance(right_T, str):
            return Score.failed(ScoreStatus.ERROR, right_T)
        parts = {f"step_{n}": float(p) for n, p in enumerate(right_T, 1)}
        parts |= {f"end_{n}": float(step.end) for n, step in enumerate(steps, 1)}
        return Score(aggregate(right_T, self.config.aggregate), parts)
