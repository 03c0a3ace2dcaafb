"""Two tokenizers' tokens of one text, aligned where both end a token.

Suffixes: ``_S`` spans of text that are whole tokens of both, ``_N`` the student's tokens that count, flat, ``_M`` the
teacher's tokens, flat, ``_C`` tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np
import torch

from rlhf_core.models import on_device

CERTAIN = -1e-30
"""Largest log-probability of a span: that of all other texts stays finite, and so does its gradient."""


class Span(NamedTuple):
    """Tokens ``start`` to ``end`` of the student and of the teacher that say the same."""

    start: int
    end: int
    teacher_start: int
    teacher_end: int


def token_ends(tokenizer: Any, ids: Sequence[int]) -> tuple[str, list[int | None]]:
    """The text of some tokens, and where in it each of them ends; None inside a character of several bytes."""

    def text_of(start: int, end: int) -> str:
        part = list(ids[start:end])
        return str(tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    text, ends, before, read = "", list[int | None](), 0, 0
    for n in range(1, len(ids) + 1):  # decoded with the token before: some tokenizers drop a leading space
        known, now = text_of(before, read), text_of(before, n)
        if now.endswith("\ufffd"):
            ends.append(None)
            continue
        text += now[len(known) :]
        before, read = read, n
        ends.append(len(text))
    return text, ends


def end_tokens(formatter: Any) -> tuple[int, ...]:
    """Ids that end a completion: its chat template's, the first of which closes a turn, and the tokenizer's EOS."""
    tokenizer = formatter.tokenizer
    ids = (*map(tokenizer.convert_tokens_to_ids, formatter.turn_ends), tokenizer.eos_token_id)
    return tuple(dict.fromkeys(token for token in ids if token is not None))


def align(student: Any, ids: Sequence[int], teacher: Any, room: int) -> tuple[list[int], list[Span]]:
    """The teacher's tokens of a completion, at most ``room``, and the spans that both have; of two ``Formatter``.

    The end of the student's completion is the end of the teacher's turn, a span of its own. Bytes that are no
    character are of no span, nor are special tokens before the end: the teacher would read others.
    """
    ends_teacher = end_tokens(teacher)
    ended = bool(ids and ends_teacher) and ids[-1] in end_tokens(student)
    text, ends = token_ends(student.tokenizer, ids[: len(ids) - ended])
    teacher_ids = list(teacher.encode_text(text))
    whole = len(teacher_ids) + ended <= room
    teacher_ids = teacher_ids[:room]
    teacher_text, teacher_ends = token_ends(teacher.tokenizer, teacher_ids)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, teacher_text)))
    at, teacher_at = ({end: n for n, end in enumerate(e, 1) if end is not None} for e in (ends, teacher_ends))
    cuts = [0, *sorted(end for end in at.keys() & teacher_at.keys() if 0 < end <= same)]
    at[0] = teacher_at[0] = 0
    special = set(student.tokenizer.all_special_ids)
    known = [(a, b) for a, b in pairwise(cuts) if "\ufffd" not in text[a:b] and special.isdisjoint(ids[at[a] : at[b]])]
    spans = [Span(at[a], at[b], teacher_at[a], teacher_at[b]) for a, b in known]
    if ended and whole and cuts[-1] == len(text):
        spans.append(Span(len(ids) - 1, len(ids), len(teacher_ids), len(teacher_ids) + 1))
        teacher_ids.append(ends_teacher[0])
    return teacher_ids, spans


@dataclass(frozen=True)
class SpanTeacher:
    """A teacher's log-probabilities of its own tokens, and which spans these and the student's belong to."""

    logprobs: Callable[[float], torch.Tensor]
    """``logprobs(temperature)``, ``[M]``."""
    span_M: torch.Tensor
    """Number of each token's span; -1 has none."""
    span_N: torch.Tensor
    last_S: torch.Tensor
    """The student's last token of each span, which gets its divergence."""

    def divergence(self, loss: Any, logprobs_N: torch.Tensor) -> torch.Tensor:
        """Approximate likelihood matching (Minixhofer et al. 2025, arXiv 2503.20083), at temperature 1.

        The divergence of two outcomes, this span and any other text: of :math:`p = \\prod_{t \\in S} \\pi(t)` and
        :math:`1 - p`, of teacher and student. 0 at tokens that do not end a span.
        """
        logprobs_M = self.logprobs(loss.temperature).to(logprobs_N)
        pairs = ((logprobs_N, self.span_N), (logprobs_M, self.span_M))
        student_S2, teacher_S2 = (two_outcomes(self._sums(values, spans)) for values, spans in pairs)
        return torch.zeros_like(logprobs_N).index_add(0, self.last_S, loss.divergence(student_S2, teacher_S2))

    def _sums(self, values: torch.Tensor, spans: torch.Tensor) -> torch.Tensor:
        inside = spans >= 0
        return values.new_zeros(len(self.last_S)).index_add(0, spans[inside], values[inside])


def exact_logprobs(logprobs_CV: torch.Tensor, targets_C: torch.Tensor) -> torch.Tensor:
    """Log-probability of each target, near 0 by that of all other tokens: float32 has no number between 1 and 1 - 6e-8,
    and a student that is too certain of a token would have no gradient."""
    target_C = logprobs_CV.gather(-1, targets_C[:, None]).squeeze(-1)
    rest_C = logprobs_CV.scatter(-1, targets_C[:, None], -torch.inf).logsumexp(-1)
    return torch.where(rest_C < -1, torch.log1p(-rest_C.clamp(max=-1).exp()), target_C)


def two_outcomes(logprobs_S: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of each span and of anything else."""
    this_S = logprobs_S.clamp(max=CERTAIN)
    return torch.stack([this_S, torch.log(-torch.expm1(this_S))], -1)


def no_logprobs(_temperature: float) -> torch.Tensor:
    """Of a micro-batch without a token of the teacher."""
    return torch.zeros(0)


def span_numbers(
    spans: Sequence[Sequence[Span]], masks: Sequence[Any], teacher_lengths: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(span_M, span_N, last_S)`` of a micro-batch; a span with a token that does not count is none."""
    span_B, teacher_span_B, last_S, count, first = list[Any](), list[Any](), list[int](), 0, 0
    for rows, mask_T, length in zip(spans, masks, teacher_lengths, strict=True):
        span_T, teacher_span_T = np.full(len(mask_T), -1), np.full(length, -1)
        counted_T = first + np.cumsum(mask_T) - 1
        for one in rows:
            if not np.all(mask_T[one.start : one.end]):
                continue
            span_T[one.start : one.end] = teacher_span_T[one.teacher_start : one.teacher_end] = count
            last_S.append(int(counted_T[one.end - 1]))
            count += 1
        first += int(np.sum(mask_T))
        span_B.append(span_T[np.asarray(mask_T, bool)])
        teacher_span_B.append(teacher_span_T)
    flat = (np.concatenate(teacher_span_B), np.concatenate(span_B), np.array(last_S, np.int64))
    span_M, span_N, last = (on_device(rows.astype(np.int64), device) for rows in flat)
    return span_M, span_N, last
