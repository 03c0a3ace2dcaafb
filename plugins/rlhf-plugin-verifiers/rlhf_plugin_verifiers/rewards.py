"""Every verifier as a reward of its own name: ``--reward gsm8k`` is ``--reward verifier`` with that verifier.

``--set reward.verifier.mode=strict`` changes the verifier, ``--set reward.timeout_s=10`` its workers.
"""

from __future__ import annotations

from typing import Any

from pydantic import create_model

from rlhf_core.config import component
from rlhf_plugin_verifiers.exact.config import AnswerTagsConfig, ChoiceConfig, ExactConfig, JsonSchemaConfig
from rlhf_plugin_verifiers.gym.config import GymVerifierConfig
from rlhf_plugin_verifiers.instructions.config import IFBenchConfig, IFEvalConfig
from rlhf_plugin_verifiers.maths.config import (
    Gsm8kConfig,
    MathConfig,
    MinervaMathConfig,
    QuestionOnlyConfig,
    R1ZeroConfig,
)
from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig


def _reward(class_name: str, verifier: Any, rewarded: str) -> type[VerifierRewardConfig]:
    """The configuration of a reward that calls one verifier, under its name."""
    name = verifier.model_fields["name"].default
    return create_model(
        class_name,
        __base__=VerifierRewardConfig,
        __module__=__name__,
        __doc__=f"Rewards {rewarded}; see verifier ``{name}``.",
        name=(str, name),
        verifier=(component("verifier"), verifier(name=name)),
    )


Gsm8kRewardConfig = _reward("Gsm8kRewardConfig", Gsm8kConfig, "the number that a completion states")
MathRewardConfig = _reward("MathRewardConfig", MathConfig, "an answer that is mathematically equal to the reference")
MinervaMathRewardConfig = _reward("MinervaMathRewardConfig", MinervaMathConfig, "a boxed answer only")
R1ZeroRewardConfig = _reward(
    "R1ZeroRewardConfig", R1ZeroConfig, "``</think> <answer> ... </answer>`` with the right answer"
)
QuestionOnlyRewardConfig = _reward(
    "QuestionOnlyRewardConfig", QuestionOnlyConfig, "the last box of an answer to the bare question"
)
IFEvalRewardConfig = _reward("IFEvalRewardConfig", IFEvalConfig, "following the instructions that a row lists")
IFBenchRewardConfig = _reward(
    "IFBenchRewardConfig", IFBenchConfig, "following the instructions that a row lists, loosely"
)
ExactRewardConfig = _reward("ExactRewardConfig", ExactConfig, "exactly the reference answer")
AnswerTagsRewardConfig = _reward(
    "AnswerTagsRewardConfig", AnswerTagsConfig, "the reference's words between answer tags"
)
ChoiceRewardConfig = _reward("ChoiceRewardConfig", ChoiceConfig, "the right letter")
JsonSchemaRewardConfig = _reward("JsonSchemaRewardConfig", JsonSchemaConfig, "JSON that fits a schema")
GymRewardConfig = _reward("GymRewardConfig", GymVerifierConfig, "what a reasoning-gym task scores")
