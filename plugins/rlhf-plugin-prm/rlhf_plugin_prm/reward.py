"""The reward ``prm``: a probability per step, and one number made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rlhf_core.config import BuildContext
from rlhf_core.data import Message, Tool
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_prm.net import Ids, StepEncoder, step_probabilities
from rlhf_plugin_prm.steps import Step, split_steps
from rlhf_plugin_prm.store import load_model
from rlhf_plugin_reward.encoding import check_episodes

if TYPE_CHECKING:
    from rlhf_plugin_prm.reward_config import Aggregate, PrmRewardConfig
    from rlhf_plugin_reward.net import RewardNet

Floats = npt.NDArray[np.float64]
StepQuery = tuple[Sequence[Message], str, Sequence[Step], Sequence[Tool]]
"""Prompt, solution, its steps, and the prompt's tools."""
UNANSWERED = "the episode ended without an answer"


def aggregate(right_T: Floats, how: Aggregate) -> float:
    """One number in [0, 1]: ``min``, ``mean``, ``product`` (Lightman et al. 2023, appendix F) or ``last``."""
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
    """Scores every step at its last token: ``parts`` are the probabilities ``step_1`` ... and ``end_1`` ..., the
    character of the completion (of an episode: of the step's own turn) where each ends; an outcome model has one. An
    episode that ended without an answer has one step more, of probability 0, unless it was cut in a turn with calls."""

    def __init__(self, net: RewardNet, encoder: StepEncoder, config: PrmRewardConfig, every_step: bool) -> None:
        self.net, self.encoder, self.config, self.every_step = net, encoder, config, every_step

    @classmethod
    def from_config(cls, config: PrmRewardConfig, ctx: BuildContext) -> StepReward:
        reward = cls.load(config, str(ctx.device))
        check_episodes(reward.encoder.formatter.encode, config.path, getattr(ctx.config, "environment", None))
        return reward

    @classmethod
    def load(cls, config: PrmRewardConfig, device: str) -> StepReward:
        net, tokenizer, card = load_model(config.path)
        encoder = StepEncoder(tokenizer, min(config.max_length or card.max_length, net.context))
        every_step = card.target == "steps" or config.read == "steps"
        config = config.model_copy(update={"split": config.split or card.split})
        return cls(net.to(device), encoder, config, every_step)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample; without a step, with too many tokens, or not finite it is an error, not a number."""
        queries = [self._queries(sample) for sample in samples]
        every = iter(self.probabilities([query for rows in queries for query in rows]))
        return [self._score(s, rows, [next(every) for _ in rows]) for s, rows in zip(samples, queries, strict=True)]

    def _queries(self, sample: Sample) -> list[StepQuery]:
        """What is read of a sample: one solution, of an episode one for each turn with steps."""
        assert self.config.split is not None, "load() sets it"
        tools = sample.prompt.tools
        last = split_steps(sample.completion, self.config.split)
        queries: list[StepQuery] = []
        written = [n for n, turn in enumerate(sample.trajectory) if turn.role == "assistant"]
        for n in written[:-1] if self.every_step else ():
            text = sample.trajectory[n].text
            if steps := split_steps(text, self.config.split):
                queries.append((sample.before_turn(n), text, steps, tools))
        if (last and (self.every_step or not _unanswered(sample))) or not sample.trajectory:
            queries.append((sample.before, sample.completion, last if self.every_step else last[-1:], tools))
        return queries

    def probabilities(self, queries: Sequence[StepQuery]) -> list[Floats | str]:
        """That each of the given steps is right, one array per solution; or why there is none."""
        results: dict[int, Floats | str] = {}
        rows: dict[int, tuple[Ids, tuple[int, ...]]] = {}
        for n, query in enumerate(queries):
            try:
                rows[n] = self.encoder.encode(*query)[:2]
            except ValueError as error:
                results[n] = str(error)
        ids, positions = [r[0] for r in rows.values()], [r[1] for r in rows.values()]
        for n, right_T in zip(rows, step_probabilities(self.net, ids, positions, self.config.batch_tokens)):
            finite = bool(np.isfinite(right_T).all())
            results[n] = right_T if finite else f"the process reward model returned {right_T.tolist()}"
        return [results[n] for n in range(len(queries))]

    def _score(self, sample: Sample, queries: Sequence[StepQuery], read: Sequence[Floats | str]) -> Score:
        failed = [why for why in read if isinstance(why, str)]
        if failed:
            return Score.failed(ScoreStatus.ERROR, failed[0])
        right, ends = [float(p) for row in read for p in row], [float(step.end) for q in queries for step in q[2]]
        unanswered = _unanswered(sample)
        if unanswered:
            right, ends = [*right, 0.0], [*ends, 0.0]
        parts = {f"step_{n}": p for n, p in enumerate(right, 1)} | {f"end_{n}": e for n, e in enumerate(ends, 1)}
        return Score(aggregate(np.array(right), self.config.aggregate), parts, detail=UNANSWERED if unanswered else "")


def _unanswered(sample: Sample) -> bool:
    return bool(sample.trajectory) and (sample.call is not None or not sample.completion.strip())
