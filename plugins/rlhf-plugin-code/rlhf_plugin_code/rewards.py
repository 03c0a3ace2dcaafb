"""Every verifier as a reward of its own name: ``--reward mbpp`` is ``--reward verifier`` with that verifier."""

from __future__ import annotations

from rlhf_core.config import component
from rlhf_plugin_code.config import AppsConfig, AssertsConfig, HumanEvalConfig, MBPPConfig, ProgramConfig
from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig


class AssertsRewardConfig(VerifierRewardConfig):
    """Rewards a program that passes the row's asserts; see verifier ``asserts``."""

    name: str = "asserts"
    verifier: component("verifier") = AssertsConfig(name="asserts")  # pyright: ignore[reportInvalidTypeForm]


class MBPPRewardConfig(VerifierRewardConfig):
    """Rewards a solution of an MBPP task; see verifier ``mbpp``."""

    name: str = "mbpp"
    verifier: component("verifier") = MBPPConfig(name="mbpp")  # pyright: ignore[reportInvalidTypeForm]


class HumanEvalRewardConfig(VerifierRewardConfig):
    """Rewards a solution of a HumanEval task; see verifier ``humaneval``."""

    name: str = "humaneval"
    verifier: component("verifier") = HumanEvalConfig(name="humaneval")  # pyright: ignore[reportInvalidTypeForm]


class AppsRewardConfig(VerifierRewardConfig):
    """Rewards a program by what it prints for given inputs; see verifier ``apps``."""

    name: str = "apps"
    verifier: component("verifier") = AppsConfig(name="apps")  # pyright: ignore[reportInvalidTypeForm]


class ProgramRewardConfig(VerifierRewardConfig):
    """Rewards what a program prints; see verifier ``program``."""

    name: str = "program"
    verifier: component("verifier") = ProgramConfig(name="program")  # pyright: ignore[reportInvalidTypeForm]
