"""Every verifier as a reward of its own name: ``--reward gsm8k`` is ``--reward verifier`` with that verifier.

``--set reward.verifier.mode=strict`` changes the verifier, ``--set reward.timeout_s=10`` its workers.
"""

from __future__ import annotations

from rlhf_plugin_verifiers.by_row.config import ByRowConfig
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
from rlhf_plugin_verifiers.reward_config import reward_of

Gsm8kRewardConfig = reward_of(Gsm8kConfig, __name__, "the number that a completion states")
MathRewardConfig = reward_of(MathConfig, __name__, "an answer that is mathematically equal to the reference")
MinervaMathRewardConfig = reward_of(MinervaMathConfig, __name__, "a boxed answer only")
R1ZeroRewardConfig = reward_of(R1ZeroConfig, __name__, "``</think> <answer> ... </answer>`` with the right answer")
QuestionOnlyRewardConfig = reward_of(QuestionOnlyConfig, __name__, "the last box of an answer to the bare question")
IFEvalRewardConfig = reward_of(IFEvalConfig, __name__, "following the instructions that a row lists")
IFBenchRewardConfig = reward_of(IFBenchConfig, __name__, "following the instructions that a row lists, loosely")
ExactRewardConfig = reward_of(ExactConfig, __name__, "exactly the reference answer")
AnswerTagsRewardConfig = reward_of(AnswerTagsConfig, __name__, "the reference's words between answer tags")
ChoiceRewardConfig = reward_of(ChoiceConfig, __name__, "the right letter")
JsonSchemaRewardConfig = reward_of(JsonSchemaConfig, __name__, "JSON that fits a schema")
GymRewardConfig = reward_of(GymVerifierConfig, __name__, "what a reasoning-gym task scores")
ByRowRewardConfig = reward_of(ByRowConfig, __name__, "what the verifier says that a column of the row names")
