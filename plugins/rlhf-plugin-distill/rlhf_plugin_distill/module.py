"""From samples to the divergence at each token, the heads of student and teacher a chunk of tokens at a time.

Suffixes: ``_B`` sequences, ``_T`` completion tokens (padded grid), ``_N`` the tokens that count, flat, ``_X`` hidden
states (or logits, of a model that does not split), ``_C`` tokens of a chunk, ``_V`` vocabulary, ``_K`` likeliest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from rlhf_core.losses import TokenBatch
from rlhf_core.models import on_device, pad_rows, split_lm_head
from rlhf_core.training import PolicyModule, TrainingSample, completion_logprobs
from rlhf_plugin_distill.loss import Divergence, with_tail
from rlhf_plugin_distill.spans import Span, SpanTeacher, exact_logprobs

CHUNK_BYTES = 32 << 20
"""Of one float32 tensor ``[C, V]``; a chunk holds a few at a time, and the backward pass makes them again."""


@dataclass(frozen=True, slots=True)
class DistillSample(TrainingSample):
    """A completion, and what its teacher needs or has said."""

    teacher_prompt: tuple[int, ...] | None = None
    """What the teacher reads before the completion; None: what the student does."""
    teacher_ids_TK: Any = None
    """Of a server: its likeliest tokens at each token."""
    teacher_logprobs_TK: Any = None
    """Their log-probabilities and, last, that of all others together: ``[T, K + 1]``."""
    teacher_completion: tuple[int, ...] = ()
    """Of a teacher with another tokenizer: its tokens of the completion."""
    teacher_logprobs_M: tuple[float, ...] = ()
    """What a server says of these."""
    spans: tuple[Span, ...] = ()
    """Which of them are which of the student's."""


@dataclass(frozen=True, slots=True)
class DistillBatch(TokenBatch):
    """What a loss that consumes ``teacher`` sees. The other log-probabilities have no gradient here."""

    divergence_BT: torch.Tensor | None = None
    """With gradient; 0 at tokens that do not count."""
    aligned: tuple[torch.Tensor, int] | None = None
    """With another tokenizer: tokens in spans that the teacher has too, of those that count."""


class Outputs(NamedTuple):
    """Next-token outputs at some tokens."""

    rows_NX: torch.Tensor
    head: Callable[[torch.Tensor], torch.Tensor]


Pieces = Sequence[tuple[Sequence[int], Sequence[int]]]


def outputs(model: Any, pieces: Pieces, wanted_N: torch.Tensor, paths: Mapping[str, Any]) -> Outputs:
    """Of each completion token that counts, row after row."""
    prompts, completions = [p for p, _ in pieces], [c for _, c in pieces]
    parts = split_lm_head(model, linear=True)
    if parts is not None:
        first = [[n == 0 for n in range(len(c))] for c in completions]  # no other needs a logprob from there
        hidden_NX = completion_logprobs(model, prompts, completions, masks=first, **paths).hidden_NH
        assert hidden_NX is not None
        return Outputs(hidden_NX[wanted_N], parts.head)
    ids_BL, _ = pad_rows([[*p, *c[:-1]] for p, c in pieces], next(model.parameters()).device)
    places = [(b, len(p) - 1 + t) for b, (p, c) in enumerate(pieces) for t in range(len(c))]
    row_N, place_N = on_device(places, ids_BL.device).T
    return Outputs(model(input_ids=ids_BL, use_cache=False).logits[row_N, place_N][wanted_N], lambda rows: rows)


@torch.no_grad()
def chosen_logprobs(made: Outputs, targets_N: torch.Tensor, vocabulary: int, temperature: float) -> torch.Tensor:
    """Log-probability of each token, the head a chunk at a time."""
    size, parts = max(1, CHUNK_BYTES // (4 * vocabulary)), list[torch.Tensor]()
    for rows_CX, targets_C in zip(made.rows_NX.split(size), targets_N.split(size), strict=True):
        logprobs_CV = (_wide(made.head(rows_CX)) / temperature).log_softmax(-1)
        parts.append(exact_logprobs(logprobs_CV, targets_C))
    return torch.cat(parts)


class DistillModule(PolicyModule):
    """The student, with a teacher beside it that no optimizer and no strategy knows of."""

    model: Any
    teacher: Any
    loss: Any

    def __init__(self, policy: PolicyModule, teacher: Any, loss: Divergence) -> None:
        super().__init__(policy.model, policy.temperature, policy.options)
        self.teacher, self.loss = teacher, loss

    def forward(self, samples: Sequence[Any], compute: Any = None) -> Any:
        """The :class:`DistillBatch` of a micro-batch, or ``compute(self, samples)``."""
        if compute is not None:
            return compute(self, samples)
        device, paths = next(self.model.parameters()).device, self.options.as_arguments
        mask_BT = _grid([s.mask_T for s in samples], bool, device)
        counted = np.concatenate([s.mask_T for s in samples]).nonzero()[0]
        wanted_N = on_device(counted, device)
        targets_N = on_device([t for s in samples for t in s.completion_ids], device)[wanted_N]
        student = outputs(self.model, [piece for s in samples for piece in s.pieces], wanted_N, paths)
        teacher = self.teacher.outputs(samples, wanted_N, paths)
        divergence_N, logprobs_N, entropy_N = self._chunked(student, teacher, targets_N)
        behaviour = [s.behaviour_T for s in samples]

        def grid(values_N: torch.Tensor) -> torch.Tensor:
            return values_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, values_N)

        return DistillBatch(
            logprobs_BT=grid(logprobs_N),
            mask_BT=mask_BT,
            behaviour_logprobs_BT=None if behaviour[0] is None else _grid(behaviour, np.float32, device),
            entropy_BT=grid(entropy_N),
            divergence_BT=grid(divergence_N),
            aligned=((teacher.span_N >= 0).sum(), len(counted)) if isinstance(teacher, SpanTeacher) else None,
        )

    def _chunked(self, student: Outputs, teacher: Any, targets_N: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Divergence, and the student's logprob and entropy at the sampler's temperature, of each token."""
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        size = max(1, CHUNK_BYTES // (4 * vocabulary))
        parts = [
            checkpoint(self._chunk, student, teacher, targets_N, slice(n, n + size), use_reentrant=False)
            for n in range(0, len(targets_N), size)
        ]
        if not parts:  # every completion of the micro-batch was cut
            none_N = student.rows_NX.float().sum(-1)
            return none_N, none_N.detach(), none_N.detach()
        first_N, *others = (torch.cat(column) for column in zip(*parts, strict=True))
        return teacher.divergence(self.loss, first_N) if isinstance(teacher, SpanTeacher) else first_N, *others

    def _chunk(
        self, student: Outputs, teacher: Any, targets_N: torch.Tensor, C: slice
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits_CV = _wide(student.head(student.rows_NX[C]))
        student_CV = (logits_CV / self.loss.temperature).log_softmax(-1)
        if isinstance(teacher, SpanTeacher):  # a sum over several tokens, which other chunks may have
            divergence_C = exact_logprobs(student_CV, targets_N[C])
        else:
            divergence_C = self.loss.divergence(*teacher.compared(student_CV, C, self.loss.temperature))
        with torch.no_grad():
            sampled_CV = student_CV
            if self.loss.temperature != self.temperature:
                sampled_CV = (logits_CV / self.temperature).log_softmax(-1)
            logprobs_C = sampled_CV.gather(-1, targets_N[C, None]).squeeze(-1)
            entropy_C = -(sampled_CV.exp() * sampled_CV.clamp(min=torch.finfo(sampled_CV.dtype).min)).sum(-1)
        return divergence_C, logprobs_C, entropy_C


@dataclass(frozen=True)
class FullTeacher:
    """A teacher's outputs at the tokens of a micro-batch, its head not yet applied."""

    outputs: Outputs
    top_k: int

    @torch.no_grad()
    def logprobs(self, C: slice, temperature: float) -> torch.Tensor:
        """Of a chunk's tokens, over its vocabulary."""
        return (_wide(self.outputs.head(self.outputs.rows_NX[C])) / temperature).log_softmax(-1)

    def compared(self, student_CV: torch.Tensor, C: slice, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of student and teacher over the same outcomes."""
        teacher_CV, student_CV = _same_width(self.logprobs(C, temperature), student_CV)
        if not self.top_k:
            return student_CV, teacher_CV
        ids_CK = teacher_CV.topk(self.top_k).indices
        return with_tail(student_CV, ids_CK), with_tail(teacher_CV, ids_CK)


@dataclass(frozen=True)
class TopKTeacher:
    """What a server said of the tokens of a micro-batch."""

    ids_NK: torch.Tensor
    logprobs_NK: torch.Tensor

    def compared(self, student_CV: torch.Tensor, C: slice, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of student and teacher over the same outcomes."""
        return with_tail(student_CV, self.ids_NK[C]), self.logprobs_NK[C]


def _wide(logits_CV: torch.Tensor) -> torch.Tensor:
    """float32 at least; a model in float64 is for comparison with other implementations."""
    return logits_CV if logits_CV.dtype == torch.float64 else logits_CV.float()


def _same_width(one_CV: torch.Tensor, other_CV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of one tokenizer's ids; heads may have further rows, of no token, whose probability is 0."""
    width = min(one_CV.shape[-1], other_CV.shape[-1])
    return one_CV[:, :width], other_CV[:, :width]


def _grid(rows: Sequence[Any], dtype: Any, device: torch.device) -> torch.Tensor:
    full = np.zeros((len(rows), max(map(len, rows))), dtype)
    for n, row in enumerate(rows):
        full[n, : len(row)] = row
    return on_device(full, device, None)
