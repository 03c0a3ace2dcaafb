"""Divergences of next-token distributions, in nats. Suffixes: ``_C`` tokens of a chunk, ``_V`` vocabulary, ``_K`` the
teacher's likeliest tokens and, last, all others together."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_core.losses import LossOutput


class Divergence:
    """``loss_BT = D(teacher, student)`` at each completion token."""

    def __init__(self, config: Any) -> None:
        self.beta, self.temperature = float(config.beta), float(config.temperature)

    def __call__(self, batch: Any) -> LossOutput:
        """The divergences that the trainer has computed with :meth:`divergence`, a chunk of tokens at a time."""
        aligned = getattr(batch, "aligned", None)
        return LossOutput(batch.divergence_BT, {} if aligned is None else {"teacher/aligned": aligned})

    def divergence(self, student_CV: torch.Tensor, teacher_CV: torch.Tensor) -> torch.Tensor:
        """One value per token of two tensors of log-probabilities."""
        return generalized_jsd(student_CV, teacher_CV, self.beta)


def generalized_jsd(student_CV: torch.Tensor, teacher_CV: torch.Tensor, beta: float) -> torch.Tensor:
    """``beta KL(teacher || m) + (1 - beta) KL(student || m)``; 0 and 1 are the forward and the reverse KL.

    Args:
        student_CV: log-probabilities, natural; ``-inf`` where a token cannot be.
        teacher_CV: the same of the teacher.
        beta: 0 to 1; m is ``beta teacher + (1 - beta) student``.
    """
    least = torch.finfo(student_CV.dtype).min
    student_CV, teacher_CV = student_CV.clamp(min=least), teacher_CV.clamp(min=least)
    if beta == 0:
        return _kl(teacher_CV, student_CV)
    if beta == 1:
        return _kl(student_CV, teacher_CV)
    shares = torch.tensor([1 - beta, beta], dtype=student_CV.dtype).log().tolist()
    mixture_CV = torch.logaddexp(student_CV + shares[0], teacher_CV + shares[1])
    return beta * _kl(teacher_CV, mixture_CV) + (1 - beta) * _kl(student_CV, mixture_CV)


def _kl(p_CV: torch.Tensor, q_CV: torch.Tensor) -> torch.Tensor:
    return (p_CV.exp() * (p_CV - q_CV)).sum(-1)


def with_tail(logprobs_CV: torch.Tensor, ids_CK: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of some tokens and, last, of all others together."""
    rest_CV = logprobs_CV.scatter(-1, ids_CK, -torch.inf)
    return torch.cat([logprobs_CV.gather(-1, ids_CK), rest_CV.logsumexp(-1, keepdim=True)], -1)
