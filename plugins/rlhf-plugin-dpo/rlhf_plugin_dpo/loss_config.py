"""Configurations of the pair losses; importing this never imports torch.

Below, ``h = log pi - log pi_ref`` of a whole response, summed over its tokens, and ``_w``, ``_l`` are chosen and
rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import ComponentConfig

Need = Literal["needed", "optional", "unused"]
Divergence = Literal["reverse_kl", "forward_kl", "js", "alpha"]


class PairLossConfig(ComponentConfig):
    """What every pair loss has."""

    component: ClassVar[str] = "rlhf_plugin_dpo.pair_loss:PairLoss"

    consumes: ClassVar[str | None] = "pairs"
    reference: ClassVar[Need] = "needed"
    """Whether the loss looks at the reference policy: it must, it may (``trainer.reference_free``), or it does not."""
    pairing: ClassVar[Literal["pairs", "reference_by_rank", "sides_by_rank"]] = "pairs"
    """What the trainer compares: the pairs as they are, or (AOT) what has the same rank within the batch."""
    monotone: ClassVar[bool] = True
    """The loss falls as the margin grows from below zero."""
    beta: float = Field(0.1, gt=0, allow_inf_nan=False)
    """Strength of the pull towards the reference policy; a larger one stays closer."""


class DifferenceConfig(PairLossConfig):
    """Losses of the difference of two scores, ``f'(pi_w / ref_w) - f'(pi_l / ref_l)``; ``h_w - h_l`` unless said."""

    reference: ClassVar[Need] = "optional"
    divergence: Divergence = "reverse_kl"
    """f-divergence whose constraint the loss stands for (Wang et al. 2023, f-DPO): ``reverse_kl`` h, ``forward_kl``
    ``1 - exp(-h)``, ``js`` ``log 2 + log sigmoid(h)``, ``alpha`` ``(exp((a - 1) h) - 1) / (a - 1)``."""
    divergence_alpha: float = Field(0.5, ge=0, allow_inf_nan=False)
    """``a`` of the alpha divergence; 1 is the reverse KL."""
    length_normalised: bool = False
    """Divide each score by its response's number of tokens."""


class SigmoidConfig(DifferenceConfig):
    """``-(1 - e) log sigmoid(beta d) - e log sigmoid(-beta d)`` (Rafailov et al. 2023, DPO, eq. 7)."""

    name: str = "sigmoid"
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """``e``, the share of labels believed to be wrong (Mitchell 2023, conservative DPO)."""


class HingeConfig(DifferenceConfig):
    """``max(0, 1 - beta d)`` (Zhao et al. 2023, SLiC-HF; Liu et al. 2023, RSO)."""

    name: str = "hinge"


class IpoConfig(DifferenceConfig):
    """``(d - 1 / (2 beta))^2`` (Azar et al. 2023, IPO, eq. 17); beta is the paper's tau."""

    name: str = "ipo"
    length_normalised: bool = True
    """Divide each score by its response's number of tokens, as the paper's authors did."""


class RobustConfig(DifferenceConfig):
    """``(-(1 - e) log sigmoid(beta d) + e log sigmoid(-beta d)) / (1 - 2 e)`` (Chowdhury et al. 2024, robust DPO)."""

    name: str = "robust"
    label_smoothing: float = Field(0.1, ge=0, lt=0.5)
    """``e``, the share of flipped labels, of which the loss is then unbiased."""


class ExoConfig(DifferenceConfig):
    """``KL((q, 1 - q) || (1 - e, e))``, ``q = sigmoid(beta d)`` (Ji et al. 2024, EXO, eq. 16)."""

    name: str = "exo"
    label_smoothing: float = Field(1e-3, gt=0, lt=0.5)
    """``e``; the logarithm of 0 would be infinite."""


class DiscoPopConfig(DifferenceConfig):
    """Logistic and exponential loss, mixed by ``sigmoid(beta d / tau)`` (Lu et al. 2024, DiscoPOP, eq. 5).

    Found by search; it rises a little where the margin is just below zero.
    """

    name: str = "discopop"
    monotone: ClassVar[bool] = False
    tau: float = Field(0.05, gt=0, allow_inf_nan=False)


class AotConfig(PairLossConfig):
    """``-log sigmoid(beta (d_(i) - d_ref,(i)))`` of sorted ``d = log pi_w - log pi_l`` (Melnyk et al. 2024, AOT).

    The i-th smallest of the policy's is compared with the i-th smallest of the reference's, within the whole batch.
    """

    name: str = "aot"
    pairing: ClassVar[Literal["pairs", "reference_by_rank", "sides_by_rank"]] = "reference_by_rank"
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of labels believed to be wrong."""


class AotUnpairedConfig(AotConfig):
    """``-log sigmoid(beta (h_w,(i) - h_l,(i)))``, both sides sorted (Melnyk et al. 2024, unpaired AOT)."""

    name: str = "aot_unpaired"
    pairing: ClassVar[Literal["pairs", "reference_by_rank", "sides_by_rank"]] = "sides_by_rank"


class NcaConfig(PairLossConfig):
    """``-log s(b h_w) - 1/2 log s(-b h_w) - 1/2 log s(-b h_l)`` (Chen et al. 2024, NCA), s the sigmoid, b beta."""

    name: str = "nca"


class BcoConfig(PairLossConfig):
    """``-log sigmoid(beta h_w) - log sigmoid(-beta h_l)`` (Jung et al. 2024, BCO on pairs, without its shift)."""

    name: str = "bco"


class SppoConfig(PairLossConfig):
    """``(h_w - 1 / (2 beta))^2 + (h_l + 1 / (2 beta))^2`` (Wu et al. 2024, SPPO, eq. 4.7 with certain labels)."""

    name: str = "sppo"


class ApoZeroConfig(PairLossConfig):
    """``1 - sigmoid(beta h_w) + sigmoid(beta h_l)`` (D'Oosterlinck et al. 2024, APO-zero, eq. 7).

    For pairs whose chosen side is better than what the policy writes.
    """

    name: str = "apo_zero"


class ApoDownConfig(PairLossConfig):
    """``sigmoid(beta h_w) + 1 - sigmoid(beta (h_w - h_l))`` (D'Oosterlinck et al. 2024, APO-down, eq. 8).

    For pairs whose chosen side is worse than what the policy writes.
    """

    name: str = "apo_down"


class SimpoConfig(PairLossConfig):
    """``-log sigmoid(beta (log pi_w / |w| - log pi_l / |l|) - gamma)`` (Meng et al. 2024, SimPO, eq. 6)."""

    name: str = "simpo"
    reference: ClassVar[Need] = "unused"
    beta: float = Field(2.0, gt=0, allow_inf_nan=False)
    """Scale of the mean log-probabilities."""
    gamma: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Margin that is asked for."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of labels believed to be wrong."""


class CpoConfig(PairLossConfig):
    """``-log sigmoid(beta (log pi_w - log pi_l))``, with a supervised term (Xu et al. 2024, CPO, eq. 3)."""

    name: str = "cpo"
    reference: ClassVar[Need] = "unused"
    recipe: ClassVar[Mapping[str, Any]] = {"trainer": {"sft": {"weight": 1.0}}}
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of labels believed to be wrong."""


class OrpoConfig(PairLossConfig):
    """``-beta log sigmoid(log odds_w - log odds_l)`` of mean log-probabilities, with a supervised term on the whole
    conversation (Hong et al. 2024, ORPO, eqs. 4 to 7); beta is the paper's lambda."""

    name: str = "orpo"
    reference: ClassVar[Need] = "unused"
    recipe: ClassVar[Mapping[str, Any]] = {"trainer": {"sft": {"weight": 1.0, "on": "conversation"}}}
