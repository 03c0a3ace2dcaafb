"""Tokenized preference pairs on their way into the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhf_core.data import PreferencePair
from rlhf_core.models import Formatter


@dataclass(frozen=True, slots=True)
class Side:
    """One response with its prompt."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    head: int
    """Leading tokens that the pair's other response is long enough to have too; the rest counts ``ld_alpha``."""
    ref: float | None = None
    """Summed log-probability under the reference policy, in nats; None where no loss looks at it."""
    mask: tuple[bool, ...] | None = None
    """Of each completion token, whether the policy chose it (``Rollout.mask_T``); None if it chose all."""

    @property
    def counted(self) -> int:
        """Completion tokens that the policy chose."""
        return len(self.completion_ids) if self.mask is None else sum(self.mask)


@dataclass(frozen=True, slots=True)
class PairItem:
    """A chosen and a rejected response."""

    name: str
    chosen: Side
    rejected: Side
    margin: float = 0.0
    right: float | None = None
    """Whether this pair's own chosen side is ahead, where the batch compares others (AOT); a tie is 0.5."""
    beta_scale: float | None = None
    """What a schedule makes of beta in this step."""
    nll_scale: float = 0.0
    """Pairs of the whole batch / tokens of the whole batch's supervised term."""

    @property
    def tokens(self) -> int:
        return len(self.chosen.completion_ids) + len(self.rejected.completion_ids)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.chosen, self.rejected

    def with_refs(self, chosen: float, rejected: float) -> PairItem:
        return replace(self, chosen=replace(self.chosen, ref=chosen), rejected=replace(self.rejected, ref=rejected))


def make_pair(
    name: str,
    prompt_ids: tuple[int, ...],
    chosen_ids: tuple[int, ...],
    rejected_ids: tuple[int, ...],
    margin: float = 0.0,
) -> PairItem:
    head = min(len(chosen_ids), len(rejected_ids))
    return PairItem(name, Side(prompt_ids, chosen_ids, head), Side(prompt_ids, rejected_ids, head), margin)


def encode_pair(pair: PreferencePair, formatter: Formatter) -> PairItem:
    """Tokenize a pair; both responses end with the end token."""
    sides = ((pair.chosen, pair.chosen_turn), (pair.rejected, pair.rejected_turn))
    chosen, rejected = (formatter.encode_reply(pair.prompt, text, turn, pair.tools) for text, turn in sides)
    return make_pair(pair.id, formatter.encode(pair.prompt, pair.tools), chosen, rejected, pair.margin)


def length(item: PairItem) -> int:
    """Tokens of the longer side, prompt included."""
    return max(len(s.prompt_ids) + len(s.completion_ids) for s in item.sides)


def sides_of(items: Sequence[PairItem]) -> list[Side]:
    return [side for item in items for side in item.sides]
