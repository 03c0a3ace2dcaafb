from __future__ import annotations

from collections.abc import Mapping

from rlhf_studies.common.ablation.sums import LENGTH, SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class LengthNormalisationConfig(SumsAblation):
    """GRPO with the loss averaged over each completion (masked_mean), summed over a constant (masked_normalize), and
    averaged over all tokens."""

    name: str = "length_normalisation"
    arms: Mapping[str, Settings] = {
        "masked_mean": {"trainer": {"reduction": "sequence_mean"}},
        "masked_normalize": {"trainer": {"reduction": "constant"}},
        "token_mean": {"trainer": {"reduction": "token_mean"}},
    }
    claims: tuple[Claim, ...] = (
        Claim("000:763", "Does masked_mean learn more than masked_normalize?", "masked_mean", "masked_normalize"),
        Claim("000:763", "Does it lead to longer answers?", "masked_mean", "masked_normalize", metric=LENGTH),
    )
