"""Every verifier as a reward of its own name: ``--reward mbpp`` is ``--reward verifier`` with that verifier."""

from __future__ import annotations

from rlhf_plugin_code.config import AppsConfig, AssertsConfig, HumanEvalConfig, MBPPConfig, ProgramConfig
from rlhf_plugin_verifiers.reward_config import reward_of

AssertsRewardConfig = reward_of(AssertsConfig, __name__, "a program that passes the row's asserts")
MBPPRewardConfig = reward_of(MBPPConfig, __name__, "a solution of an MBPP task")
HumanEvalRewardConfig = reward_of(HumanEvalConfig, __name__, "a solution of a HumanEval task")
AppsRewardConfig = reward_of(AppsConfig, __name__, "a program by what it prints for given inputs")
ProgramRewardConfig = reward_of(ProgramConfig, __name__, "what a program prints")
