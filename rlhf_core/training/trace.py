"""Seconds of a step's parts, and rows of ``trace.jsonl``. Suffixes: ``_B`` sequences, ``_T`` completion tokens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from rlhf_core.distributed.group import redistribute
from rlhf_core.models.layers.trunk_and_head import fetch_to_host
from rlhf_core.plugins.strategy_protocols import Strategy
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_core.types.batches import LossOutput, PairBatch, TokenBatch
from rlhf_core.types.messages import Turn, TurnStatus
from rlhf_core.types.rollouts import PromptGroup, Rollout, Score


class Timer:
    """``with timer("rollout"): ...`` adds the seconds that it took to ``timer.seconds["rollout"]``."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Generator[None, None, None]:
        """Add to a part's seconds; what raises is not counted."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def prompt_rows(
    groups: Sequence[PromptGroup],
    rollouts: Sequence[Rollout],
    scores: Sequence[Score],
    advantages: Sequence[Any],
    full: int,
    tokens: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """One row per prompt: its completions with scores and advantages; tokens for the first ``full`` prompts.

    No row on a rank without the completions, which writes none.
    """
    rows: list[dict[str, Any]] = []
    ends = np.cumsum([group.group_size for group in groups]).tolist()
    for n, (group, end) in enumerate(zip(groups, ends) if rollouts else ()):
        indices = range(end - group.group_size, end)
        row = {
            "event": "prompt",
            "prompt_id": group.prompt.id,
            "source": group.prompt.source,
            "prompt": group.prompt.text,
            **({"prompt_ids": list(group.token_ids)} if n < full else {}),
            **({"media": [asdict(media) for media in group.prompt.media]} if group.prompt.media else {}),
            **({"messages": messages_of(group)} if any(rollouts[i].media for i in indices) else {}),
            "completions": [_completion(rollouts[i], scores[i], advantages[i], n < full, tokens) for i in indices],
        }
        rows.append(row)
    return rows


def messages_of(group: PromptGroup) -> list[dict[str, Any]]:
    """The whole conversation: what completions with sounds were asked is not all in its last turn."""
    return [dict(message) for message in group.prompt.messages]


def turn_row(turn: Turn) -> dict[str, Any]:
    """A turn as JSON; what is as usual is left out."""
    row: dict[str, Any] = {"span": list(turn.span), "role": turn.role, "message": dict(turn.message)}
    if turn.status is not TurnStatus.OK:
        row["status"] = turn.status.value
    if turn.score is not None:
        row["score"] = turn.score
    return {**row, "seconds": round(turn.seconds, 4)} if turn.seconds else row


def _completion(
    rollout: Rollout, score: Score, advantage: Any, full: bool, tokens: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "text": rollout.text,
        "finish_reason": rollout.finish_reason.value,
        "tokens": len(rollout.completion_ids),
        "policy_version": rollout.policy_version,
        "seed": rollout.seed,
        "score": score.value,
        "status": score.status.value,
        "parts": dict(score.parts),
        "advantage": None if advantage is None else float(np.mean(advantage)),
    }
    contexts = [None if s.prompt_ids is None else list(s.prompt_ids) for s in rollout.segments]
    optional = {
        "detail": score.detail,
        "media": [asdict(media) for media in rollout.media],
        "info": dict(rollout.info),
        "versions": [[*span.span, span.version] for span in rollout.versions],
        "segments": [[*segment.span, segment.role] for segment in rollout.segments],
        "contexts": contexts if full and any(contexts) else [],
        "turns": [turn_row(turn) for turn in rollout.turns],
    }
    row |= {key: value for key, value in optional.items() if value}
    if full:
        row |= {"completion_ids": list(rollout.completion_ids), "logprobs": rollout.logprobs_T}
        if rollout.mask_T is not None:
            row["mask"] = [int(chosen) for chosen in rollout.mask_T]
        if isinstance(advantage, np.ndarray) and advantage.ndim:
            row["advantages"] = np.round(np.asarray(advantage, np.float64), 5)
        row |= (tokens or {}).get(f"{rollout.prompt_id}#{rollout.group_index}", {})
    return row


DIGITS = 5
"""Decimals that are kept: a logprob's rounding in float32 is of that size."""


class _Recorded(NamedTuple):
    grids: Mapping[str, torch.Tensor]
    """Shapes ``[B, T]``, shared by all completions of the micro-batch."""
    row: int
    tokens: int
    has_old: bool


class TokenRecorder:
    """Observes updates (``observe`` of :meth:`rlhf_core.training.learner.Learner.update`) of the first ``full`` groups,
    not of prompts drawn twice. Of several updates on one completion the last one's values stay, on their device until
    they are asked for, so that no micro-batch waits for them.
    """

    def __init__(self, groups: Sequence[PromptGroup], full: int) -> None:
        recorded = sum(group.group_size for group in groups[:full])
        names = [f"{group.prompt.id}#{n}" for group in groups for n in range(group.group_size)]
        count = Counter(names)
        self.names = {name for name in names[:recorded] if count[name] == 1}
        self._records: dict[str, _Recorded] = {}

    def __call__(self, samples: Sequence[TrainingSample], batch: Any, out: LossOutput) -> None:
        """Copy the grids of a micro-batch that has recorded completions."""
        if not isinstance(batch, TokenBatch) or self.names.isdisjoint(sample.name for sample in samples):
            return
        shown: dict[str, torch.Tensor | None] = {
            "trainer_logprobs": batch.logprobs_BT,
            "old_logprobs": batch.old_logprobs_BT,
            "ref_logprobs": batch.ref_logprobs_BT,
            "entropies": batch.entropy_BT,
            "values": batch.old_values_BT,
            "returns": batch.returns_BT,
        }
        grids = {key: grid.detach().clone() for key, grid in shown.items() if grid is not None}
        for n, sample in enumerate(samples):
            if sample.name in self.names:
                self._records[sample.name] = _Recorded(grids, n, len(sample.completion_ids), sample.old_T is not None)

    @property
    def rows(self) -> dict[str, dict[str, list[float]]]:
        """What was recorded on this rank, by name."""
        grids = {id(grid): grid for record in self._records.values() for grid in record.grids.values()}
        read = dict(zip(grids, fetch_to_host(list(grids.values()))))
        return {
            name: {
                key: np.round(read[id(grid)][record.row, : record.tokens].numpy(), DIGITS).tolist()
                for key, grid in record.grids.items()
                if key != "old_logprobs" or record.has_old
            }
            for name, record in self._records.items()
        }

    def shared_out(self, strategy: Strategy, shares: Sequence[Sequence[PromptGroup]]) -> Mapping[str, Any]:
        """Rows of all ranks by name, those of its share of the groups on each rank. All ranks call it together."""
        names = [[f"{group.prompt.id}#{n}" for group in share for n in range(group.group_size)] for share in shares]
        return redistribute(strategy, self.rows, names)


Row = dict[str, Any]


class ExampleRecorder:
    """Keeps what each example of an update costs, on its device until it is asked for; of several heads nothing."""

    def __init__(self) -> None:
        self._names: list[list[str]] = []
        self._figures: list[dict[str, torch.Tensor]] = []

    def __call__(self, samples: Sequence[Any], batch: Any, out: LossOutput) -> None:
        """See ``observe`` of :meth:`rlhf_core.training.learner.Learner.update`."""
        if len(out.loss) == len(samples):
            self._names.append([sample.name for sample in samples])
            self._figures.append(figures(batch, out.loss.detach()))

    @property
    def rows(self) -> dict[str, Row]:
        """``loss`` of each example, and of pairs also ``chosen``, ``rejected`` and ``margin`` (their difference)."""
        numbers = iter(fetch_to_host([value_B for micro in self._figures for value_B in micro.values()]))
        rows: dict[str, Row] = {}
        for names, micro in zip(self._names, self._figures):
            columns = {key: next(numbers).tolist() for key in micro}
            if "chosen" in columns:
                columns["margin"] = [c - r for c, r in zip(columns["chosen"], columns["rejected"])]
            rows |= {name: {key: column[n] for key, column in columns.items()} for n, name in enumerate(names)}
        return rows


def figures(batch: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is kept of each sequence or pair of a micro-batch, shapes ``[B]``, on its device."""
    if loss.ndim == 2:
        mask_BT = batch.mask_BT
        return {"loss": (loss * mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1)}
    scores = {"chosen": batch.chosen_B, "rejected": batch.rejected_B} if isinstance(batch, PairBatch) else {}
    return {key: value_B.detach().clone() for key, value_B in {"loss": loss, **scores}.items()}


def example_rows(
    task: Any, batch: Sequence[Any], recorded: Mapping[str, Row], strategy: Strategy, texts: int
) -> list[Row]:
    """Rows of one step's examples, in the order of the batch."""
    costs = {name: row for rank in strategy.gather_objects(dict(recorded)) for name, row in rank.items()}
    describe = getattr(task, "texts", None)
    rows: list[Row] = []
    for n, item in enumerate(batch):
        shown: Mapping[str, str] = describe(item) if describe is not None and n < texts else {}
        rows.append({"id": item.name, "tokens": item.tokens, **costs.get(item.name, {}), **shown})
    return rows
