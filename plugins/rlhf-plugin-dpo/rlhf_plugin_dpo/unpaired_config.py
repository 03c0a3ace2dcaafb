"""`rlhf train --algo kto` and its losses: responses with a label each; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_core.config import ComponentConfig
from rlhf_plugin_dpo.config import PreferenceTrainerConfig
from rlhf_plugin_dpo.loss_config import Need


class KtoConfig(PreferenceTrainerConfig):
    """Learn from single responses that are desirable or not (Ethayarajh et al. 2024, KTO).

    Rows have ``prompt``, ``completion`` and ``label`` (true or false); a preference pair counts as one of each.
    """

    name: str = "kto"
    component: ClassVar[str] = "rlhf_plugin_dpo.unpaired:UnpairedTrainer"
    no_effect: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("sft", "ld_alpha"), "it compares the two responses of a pair, and here there is one"
    )
    feeds: ClassVar[str | None] = "unpaired"
    companions: ClassVar[Mapping[str, Any]] = {"dataset": "pocket/assistant", "loss": "kto"}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pocket": {
            "trainer": {
                "name": "kto",
                "batch_size": 64,
                "micro_batch_size": 64,
                "epochs": 0.5,
                "sample_prompts": 200,
                "eval_every": 0,
                "sampling": {"max_tokens": 48},
                "optimizer": {"learning_rate": 3e-4},
            }
        }
    }


class KtoLossConfig(ComponentConfig):
    """``1 - s(beta (h - z))`` of desirable responses, ``1 - s(beta (z - h))`` of others (KTO, eq. 7).

    ``z`` is the KL from the reference policy, estimated on the batch from prompts with other prompts' responses.
    """

    name: str = "kto"
    component: ClassVar[str] = "rlhf_plugin_dpo.unpaired_loss:UnpairedLoss"
    consumes: ClassVar[str | None] = "unpaired"
    reference: ClassVar[Need] = "needed"
    uses_kl: ClassVar[bool] = True
    beta: float = Field(0.1, gt=0, allow_inf_nan=False)
    """Strength of the pull towards the reference policy."""
    desirable_weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Weight of desirable responses. With unequal numbers, (weight x number) of desirable to undesirable ones is best
    between 1 and 4/3 (KTO, eq. 8)."""
    undesirable_weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Weight of the others."""


class ApoZeroUnpairedConfig(KtoLossConfig):
    """``1 - s(beta h)`` of desirable responses, ``s(beta h)`` of others (D'Oosterlinck et al. 2024, APO-zero)."""

    name: str = "apo_zero_unpaired"
    uses_kl: ClassVar[bool] = False
