"""Properties of losses that compare a student's next-token distributions with a teacher's."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_core.config import ComponentConfig
from rlhf_testing.report import require


def check_teacher_loss(config: ComponentConfig, loss: Any) -> None:
    """``divergence(student_CV, teacher_CV)`` is one: finite, at least 0, 0 where equal, and leads to the teacher."""
    generator = torch.Generator().manual_seed(3)
    logits, teacher = (torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    logits[:, 5] = teacher[:, 5] = -torch.inf
    logits.requires_grad_()

    def value(rows: torch.Tensor) -> torch.Tensor:
        return loss.divergence(rows.log_softmax(-1), teacher.log_softmax(-1))

    before = value(logits)
    rule = "divergence() gives one finite value per token, 0 or more"
    good = before.shape == (4,) and bool(before.isfinite().all()) and bool((before >= -1e-9).all())
    require(good, config, rule, repr(before.detach())[:200], "sum over the vocabulary only; mind ids of probability 0")
    without = loss.divergence(logits[:, :5].log_softmax(-1), teacher[:, :5].log_softmax(-1))
    rule = "ids that cannot be (-inf) change nothing"
    require(torch.allclose(before, without), config, rule, f"{before.detach()} and {without.detach()}")
    equal = value(teacher).abs().max().item()
    require(equal < 1e-9, config, "the divergence of equal distributions is 0", f"{equal:g}")
    (gradient,) = torch.autograd.grad(before.sum(), logits)
    rule = "a step down the gradient brings the student nearer"
    nearer = bool(gradient.isfinite().all()) and bool((value(logits - 1e-3 * gradient) < before).all())
    require(nearer, config, rule, repr(gradient)[:200], "do not detach the student's log-probabilities")
