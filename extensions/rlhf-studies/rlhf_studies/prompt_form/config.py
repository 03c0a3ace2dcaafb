from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.sums import SumsAblation, gsm8k, sums
from rlhf_study.ablation.config import Claim, Settings

FRAME = "A conversation of a user and an assistant. User: {prompt} Assistant:"
SHOTS = "What is 2 + 3? The answer is 5. What is 9 - 4? The answer is 5. {prompt}"


class PromptFormConfig(SumsAblation):
    """GRPO on the bare question, on the question inside an unknown frame, and on two worked examples before it."""

    name: str = "prompt_form"
    arms: Mapping[str, Settings] = {
        "question": {},
        "framed": sums(prompt_template=FRAME),
        "two shots": sums(prompt_template=SHOTS),
    }
    real_arms: ClassVar[Mapping[str, Settings]] = {
        "question": {},
        "framed": gsm8k(prompt_template=FRAME),
        "two shots": gsm8k(prompt_template=SHOTS),
    }
    claims: tuple[Claim, ...] = (
        Claim("000:820", "Does the bare question reach more than a frame around it?", "question", "framed"),
        Claim("001:1930", "Do examples in the prompt help the trained model?", "two shots", "question"),
    )
