"""What a step learns from: scored groups, shared out to ranks, and samples. Suffix: ``_T`` tokens of a completion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from rlhf_core.runs.session import Event
from rlhf_core.types.rollouts import FinishReason, PromptGroup, Rollout, Score

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A completion on its way into the update; arrays have shape ``[T]``.

    Example:
        TrainingSample("gsm8k/3#0", prompt_ids=(1, 7), completion_ids=(5, 2), mask_T=np.array([True, True]),
                       advantages_T=np.array([0.5, 0.5], np.float32))
    """

    name: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask_T: npt.NDArray[np.bool_]
    """True where the token counts in the loss."""
    advantages_T: Floats
    behaviour_T: Floats | None = None
    """Logprobs under the policy that sampled, from the engine."""
    old_T: Floats | None = None
    """Logprobs that the loss's ratio is relative to."""
    ref_T: Floats | None = None
    """Logprobs under the reference policy."""
    old_values_T: Floats | None = None
    returns_T: Floats | None = None
    contexts: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(First token, all that was fed before it) of each later stretch that was sampled in a context of its own. Only
    the forward is cut there; the episode stays one row for losses, reductions, penalties and metrics (ADR 0015)."""
    support: npt.NDArray[np.int32] | None = None
    """``Rollout.support``."""

    @classmethod
    def from_rollout(
        cls, rollout: Rollout, *, advantage: float | Floats = 0.0, mask_truncated: bool = False
    ) -> TrainingSample:
        """The sample of one rollout.

        Args:
            rollout: token ids, mask and behaviour logprobs.
            advantage: of every token, or one number for all.
            mask_truncated: no token of a completion that ran into ``max_tokens`` counts.
        """
        count = len(rollout.completion_ids)
        mask_T = np.ones(count, bool) if rollout.mask_T is None else rollout.mask_T.copy()
        if mask_truncated and rollout.finish_reason is FinishReason.LENGTH:
            mask_T[:] = False
        return cls(
            name=f"{rollout.prompt_id}#{rollout.group_index}",
            prompt_ids=(rollout.segments[0].prompt_ids if rollout.segments else None) or rollout.prompt_ids,
            completion_ids=rollout.completion_ids,
            mask_T=mask_T,
            advantages_T=per_token(advantage, count),
            behaviour_T=rollout.logprobs_T,
            contexts=tuple(
                (s.span[0], s.prompt_ids) for s in rollout.segments if s.prompt_ids is not None and s.span[0] > 0
            ),
            support=rollout.support,
        )

    @property
    def pieces(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(Prompt, completion) of each forward: one, but for a context that was rewritten."""
        if not self.contexts:
            return [(self.prompt_ids, self.completion_ids)]
        starts = [0, *(start for start, _ in self.contexts), len(self.completion_ids)]
        prompts = [self.prompt_ids, *(ids for _, ids in self.contexts)]
        return [(ids, self.completion_ids[a:b]) for ids, a, b in zip(prompts, starts, starts[1:])]

    @property
    def tokens(self) -> int:
        """Completion tokens that count."""
        return int(self.mask_T.sum())


def prompts_and_completions(samples: Sequence[TrainingSample]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """What the forward of a micro-batch runs; its tokens, row after row, are those of the samples."""
    pieces = [piece for sample in samples for piece in sample.pieces]
    return [prompt for prompt, _ in pieces], [completion for _, completion in pieces]


def head_masks(samples: Sequence[TrainingSample]) -> list[list[bool] | None] | None:
    """Of each completion, the tokens that need logprobs, those that the policy chose; None where these are all, or none
    (a completion that was cut): its logprobs are still measured.
    """
    if not any(_partly(sample.mask_T) for sample in samples):
        return None
    rows: list[list[bool] | None] = []
    for sample in samples:
        ends = [*(start for start, _ in sample.contexts), len(sample.completion_ids)]
        whole = sample.mask_T.tolist() if _partly(sample.mask_T) else None
        rows += [None if whole is None else whole[a:b] for a, b in zip([0, *ends], ends)]
    return rows


def _partly(mask_T: npt.NDArray[np.bool_]) -> bool:
    return bool(mask_T.any()) and not mask_T.all()


def per_token(advantage: float | Floats, count: int) -> Floats:
    """An advantage of each token; one number is spread over all."""
    return np.broadcast_to(np.asarray(advantage, np.float32), (count,)).copy()


def by_group(samples: Sequence[TrainingSample | None], sizes: Iterable[int]) -> list[list[TrainingSample]]:
    """Cut samples that lie group by group; a completion without a score (None) is left out of its group."""
    rest = iter(samples)
    return [[s for s in islice(rest, size) if s is not None] for size in sizes]


@dataclass(frozen=True)
class RolloutGroup:
    """One prompt's completions and their scores."""

    group: PromptGroup
    rollouts: Sequence[Rollout]
    """Empty on a rank that has no use for them."""
    scores: Sequence[Score]

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The scores that exist."""
        return np.array([s.value for s in self.scores if s.ok], np.float64)

    @property
    def rate(self) -> float | None:
        """Mean of the scores that exist; None if none does."""
        return float(self.values.mean()) if len(self.values) else None


@dataclass(frozen=True)
class RolloutBatch:
    """Groups of all ranks, and this rank's share of them with completions and scores."""

    groups: Sequence[PromptGroup]
    own_groups: Sequence[PromptGroup]
    rollouts: Sequence[Rollout]
    """This rank's, group by group."""
    scores: Sequence[Score]
    set_aside: Sequence[RolloutGroup] = ()
    """Groups of all ranks that were sampled and scored, and are not trained on; rank 0 has their completions."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    version: int = 0
    events: Sequence[Event] = ()
    """Kept until it is first learned from, if it was made ahead."""
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def set_aside_scores(self) -> list[Score]:
        """Scores of the set-aside groups."""
        return [s for group in self.set_aside for s in group.scores]

    @property
    def set_aside_rollouts(self) -> list[Rollout]:
        """Completions of the set-aside groups, on rank 0."""
        return [r for group in self.set_aside for r in group.rollouts]

    @property
    def group_ids(self) -> list[int]:
        """Number of the group of each completion, over all ranks."""
        return [i for i, g in enumerate(self.groups) for _ in range(g.group_size)]


def share_bounds(count: int, world_size: int) -> list[int]:
    """Where each rank's share of ``count`` groups begins, and the end; sizes differ by one at most."""
    return [rank * (count // world_size) + min(rank, count % world_size) for rank in range(world_size + 1)]


def cut_groups(
    groups: Sequence[PromptGroup], rollouts: Sequence[Rollout], scores: Sequence[Score]
) -> list[RolloutGroup]:
    """Completions and scores that lie group by group, cut into their groups."""
    ends = np.cumsum([0, *(g.group_size for g in groups)])
    return [RolloutGroup(g, rollouts[a:b], scores[a:b]) for g, a, b in zip(groups, ends, ends[1:])]


def batch_of(groups: Sequence[PromptGroup], own: Sequence[RolloutGroup], version: int) -> RolloutBatch:
    """The batch of some groups, of which ``own`` are this rank's."""
    return RolloutBatch(
        groups=groups,
        own_groups=[g.group for g in own],
        rollouts=[r for g in own for r in g.rollouts],
        scores=[s for g in own for s in g.scores],
        version=version,
    )
