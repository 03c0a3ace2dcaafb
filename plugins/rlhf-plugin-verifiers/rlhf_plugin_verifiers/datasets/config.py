"""Configurations of the data sets: files in their published form, one per benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rlhf_core.api import JsonlConfig

if TYPE_CHECKING:
    from rlhf_core.api import BuildContext
    from rlhf_plugin_verifiers.datasets.adapted import Adapted


class MathsDataConfig(JsonlConfig):
    """What the maths data sets share."""

    prompt: Literal["question", "r1_zero"] = "question"
    """``r1_zero`` puts the question into the prompt of DeepSeek-R1-Zero; use it with ``model.prompt_format=raw``,
    reward ``r1_zero`` and the stop string ``</answer>``."""


class Gsm8kDataConfig(MathsDataConfig):
    """GSM8K's files: ``question``, and ``answer``, a solution that ends with ``#### X``. The reference is X."""

    name: str = "gsm8k"

    def build(self, ctx: BuildContext) -> Adapted:
        """The rows that the base class reads, under our names."""
        from rlhf_plugin_verifiers.datasets.adapted import Adapted, gsm8k_row

        return Adapted(super().build(ctx), gsm8k_row, self.prompt)


class MathDataConfig(MathsDataConfig):
    """MATH's rows and their like: ``problem`` (or ``question``), and ``answer`` or the last box of ``solution``."""

    name: str = "math"

    def build(self, ctx: BuildContext) -> Adapted:
        """The rows that the base class reads, under our names."""
        from rlhf_plugin_verifiers.datasets.adapted import Adapted, math_row

        return Adapted(super().build(ctx), math_row, self.prompt)


class IFEvalDataConfig(JsonlConfig):
    """IFEval's and IFBench's files: ``prompt``, ``instruction_id_list`` and ``kwargs``, ids from ``key``."""

    name: str = "ifeval"

    def build(self, ctx: BuildContext) -> Adapted:
        """The rows that the base class reads, under our names."""
        from rlhf_plugin_verifiers.datasets.adapted import Adapted, ifeval_row

        return Adapted(super().build(ctx), ifeval_row)


class MbppDataConfig(JsonlConfig):
    """MBPP, sanitized or full: the task with its tests as the prompt; ``test_list``, ``test_imports`` and the reference
    ``code`` go to the verifier as columns of the row. Ids from ``task_id``."""

    name: str = "mbpp"

    def build(self, ctx: BuildContext) -> Adapted:
        """The rows that the base class reads, under our names."""
        from rlhf_plugin_verifiers.datasets.adapted import Adapted, mbpp_row

        return Adapted(super().build(ctx), mbpp_row)
