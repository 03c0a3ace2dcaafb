from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings

LAST: Settings = {"name": "verifier", "verifier": {"name": "gsm8k", "mode": "last"}}


class StopStringsConfig(SumsAblation):
    """GRPO with and without a stop string behind the answer, under a verifier that reads the last number."""

    name: str = "stop_strings"
    arms: Mapping[str, Settings] = {
        "no stop string": {"reward": LAST},
        "stop string": {"reward": LAST, "trainer": {"sampling": {"stop": ["."]}}},
    }
    real_arms: ClassVar[Mapping[str, Settings]] = {
        "stop string": {"reward": LAST, "trainer": {"sampling": {"stop": ["\nQuestion:", "\nQ:", "\n\n"]}}}
    }
    claims: tuple[Claim, ...] = (
        Claim("001:2029", "With a stop string it still learns as much", "stop string", "no stop string"),
    )
