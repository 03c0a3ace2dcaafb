"""Every verifier as a reward of its own name: ``--reward gsm8k`` is ``--reward verifier`` with that verifier.

``--set reward.verifier.mode=strict`` changes the verifier, ``--set reward.timeout_s=10`` its workers.
"""

from __future__ import annotations

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


class Gsm8kRewardConfig(VerifierRewardConfig):
    """Rewards the number that a completion states; see verifier ``gsm8k``."""

    name: str = "gsm8k"
    verifier: component("verifier") = Gsm8kConfig(name="gsm8k")  # pyright: ignore[reportInvalidTypeForm]


class MathRewardConfig(VerifierRewardConfig):
    """Rewards an answer that is mathematically equal to the reference; see verifier ``math``."""

    name: str = "math"
    verifier: component("verifier") = MathConfig(name="math")  # pyright: ignore[reportInvalidTypeForm]


class MinervaMathRewardConfig(VerifierRewardConfig):
    """Rewards a boxed answer only; see verifier ``minerva_math``."""

    name: str = "minerva_math"
    verifier: component("verifier") = MinervaMathConfig(name="minerva_math")  # pyright: ignore[reportInvalidTypeForm]


class R1ZeroRewardConfig(VerifierRewardConfig):
    """Rewards ``</think> <answer> ... </answer>`` with the right answer; see verifier ``r1_zero``."""

    name: str = "r1_zero"
    verifier: component("verifier") = R1ZeroConfig(name="r1_zero")  # pyright: ignore[reportInvalidTypeForm]


class QuestionOnlyRewardConfig(VerifierRewardConfig):
    """Rewards the last box of an answer to the bare question; see verifier ``question_only``."""

    name: str = "question_only"
    verifier: component("verifier") = QuestionOnlyConfig(name="question_only")  # pyright: ignore[reportInvalidTypeForm]


class IFEvalRewardConfig(VerifierRewardConfig):
    """Rewards following the instructions that a row lists; see verifier ``ifeval``."""

    name: str = "ifeval"
    verifier: component("verifier") = IFEvalConfig(name="ifeval")  # pyright: ignore[reportInvalidTypeForm]


class IFBenchRewardConfig(VerifierRewardConfig):
    """Rewards following the instructions that a row lists, loosely; see verifier ``ifbench``."""

    name: str = "ifbench"
    verifier: component("verifier") = IFBenchConfig(name="ifbench")  # pyright: ignore[reportInvalidTypeForm]


class ExactRewardConfig(VerifierRewardConfig):
    """Rewards exactly the reference answer; see verifier ``exact``."""

    name: str = "exact"
    verifier: component("verifier") = ExactConfig(name="exact")  # pyright: ignore[reportInvalidTypeForm]


class AnswerTagsRewardConfig(VerifierRewardConfig):
    """Rewards the reference's words between answer tags; see verifier ``answer_tags``."""

    name: str = "answer_tags"
    verifier: component("verifier") = AnswerTagsConfig(name="answer_tags")  # pyright: ignore[reportInvalidTypeForm]


class ChoiceRewardConfig(VerifierRewardConfig):
    """Rewards the right letter; see verifier ``choice``."""

    name: str = "choice"
    verifier: component("verifier") = ChoiceConfig(name="choice")  # pyright: ignore[reportInvalidTypeForm]


class JsonSchemaRewardConfig(VerifierRewardConfig):
    """Rewards JSON that fits a schema; see verifier ``json_schema``."""

    name: str = "json_schema"
    verifier: component("verifier") = JsonSchemaConfig(name="json_schema")  # pyright: ignore[reportInvalidTypeForm]


class GymRewardConfig(VerifierRewardConfig):
    """Rewards what a reasoning-gym task scores; see verifier ``reasoning_gym``."""

    name: str = "reasoning_gym"
    verifier: component("verifier") = GymVerifierConfig(name="reasoning_gym")  # pyright: ignore[reportInvalidTypeForm]
