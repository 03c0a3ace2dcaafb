"""Settings of the divergences; importing this never imports torch."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rlhf_core.config import ComponentConfig


class DivergenceConfig(ComponentConfig):
    """What every divergence between the teacher's and the student's next-token distributions has."""

    component: ClassVar[str] = "rlhf_plugin_distill.loss:Divergence"
    consumes: ClassVar[str | None] = "teacher"
    temperature: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Divides the logits of both (Hinton et al. 2015). The loss is not multiplied by its square."""


class ForwardKlConfig(DivergenceConfig):
    """``KL(teacher || student)``: the student covers all that the teacher would say (Hinton et al. 2015)."""

    name: str = "forward_kl"
    beta: ClassVar[float] = 0.0


class ReverseKlConfig(DivergenceConfig):
    """``KL(student || teacher)``: the student keeps to what the teacher is sure of (Gu et al. 2024, MiniLLM). The
    gradient is that of each token's distribution; MiniLLM's also follows how a token changes the later ones."""

    name: str = "reverse_kl"
    beta: ClassVar[float] = 1.0


class JsdConfig(DivergenceConfig):
    """Generalised Jensen-Shannon divergence, ``beta KL(teacher || m) + (1 - beta) KL(student || m)`` with the mixture
    ``m = beta teacher + (1 - beta) student`` (Agarwal et al. 2024, GKD, eq. 1)."""

    name: str = "jsd"
    beta: float = Field(0.5, ge=0, le=1)
    """0 is the forward and 1 the reverse KL, as in TRL; near them the divergence itself tends to 0."""
