"""Configurations of the data sets: files in their published form, one per benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from rlhf_core.config import ComponentConfig, ConfigError, Registry, component
from rlhf_core.data import JsonlConfig

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_plugin_verifiers.datasets.adapted import Adapted
    from rlhf_plugin_verifiers.datasets.where import FilteredRows

DatasetField = component("dataset")
FOLLOW_UPS = ("\nQuestion:", "\nQ:", "\n[Question]", "\nProblem:", "\nUser:")
"""Where a base model begins to write the next question itself, which would be read as its answer."""


class AdaptedConfig(JsonlConfig):
    """Rows of a benchmark's own files, converted to the core's column names."""

    convert: ClassVar[str] = ""
    """The function in ``datasets.adapted`` that converts a row."""

    def build(self, ctx: BuildContext) -> Adapted:
        from rlhf_plugin_verifiers.datasets import adapted

        source = super().build(ctx)
        if self.path.endswith(".parquet"):
            files = {"path": self.path, "heldout_path": self.heldout_path}
            source = ctx.registry.config("dataset", "parquet", files).build(ctx)
        return adapted.Adapted(source, getattr(adapted, self.convert), getattr(self, "prompt", "question"))


class MathsDataConfig(AdaptedConfig):
    """What the maths data sets share."""

    prompt: Literal["question", "question_only", "r1_zero"] = "question"
    """``r1_zero`` puts the question into the prompt of DeepSeek-R1-Zero and the solution into its tags. It brings
    ``model.prompt_format=raw`` and the stop string ``</answer>``; use it with the reward ``r1_zero``. ``question_only``
    is the question as plain text, for the reward of that name. ``question`` brings the stop strings of a model that
    goes on with a question of its own."""

    @classmethod
    def recipe_of(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Prompt format and stop strings of the prompt's form."""
        prompt = options.get("prompt", "question")
        stop = ["</answer>"] if prompt == "r1_zero" else list(FOLLOW_UPS) if prompt == "question" else []
        raw = {} if prompt == "question" else {"model": {"prompt_format": "raw"}}
        return {**raw, "trainer": {"sampling": {"stop": stop}}}

    def preflight(self, ctx: BuildContext) -> None:
        super().preflight(ctx)
        prompt_format = ctx.config.model.prompt_format if ctx.config else "raw"  # rows may be read outside a run
        if self.prompt == "r1_zero" and prompt_format != "raw":
            raise ConfigError(
                f"dataset.prompt=r1_zero with model.prompt_format={prompt_format}",
                why="the prompt opens the assistant's turn itself (Assistant: <think>); a chat template would put that "
                "into the user's turn, and no completion would go on from it",
                fix="--set model.prompt_format=raw (the default with this data set alone), or dataset.prompt=question",
            )


class Gsm8kDataConfig(MathsDataConfig):
    """GSM8K's files: ``question``, and ``answer``, a solution that ends with ``#### X``. The reference is X."""

    name: str = "gsm8k"
    convert: ClassVar[str] = "gsm8k_row"


class MathDataConfig(MathsDataConfig):
    """MATH's rows and their like: ``problem`` (or ``question``), and ``answer`` or the last box of ``solution``."""

    name: str = "math"
    convert: ClassVar[str] = "math_row"


class IFEvalDataConfig(AdaptedConfig):
    """IFEval's and IFBench's files: ``prompt``, ``instruction_id_list`` and ``kwargs``, ids from ``key``."""

    name: str = "ifeval"
    convert: ClassVar[str] = "ifeval_row"


class MbppDataConfig(AdaptedConfig):
    """MBPP, sanitized or full: the task with its tests as the prompt; ``test_list``, ``test_imports`` and the reference
    ``code`` go to the verifier as columns of the row. Ids from ``task_id``."""

    name: str = "mbpp"
    convert: ClassVar[str] = "mbpp_row"


class AppsDataConfig(AdaptedConfig):
    """APPS' files: ``question`` with ``starter_code`` as the prompt, and ``input_output``; ids from ``problem_id``."""

    name: str = "apps"
    convert: ClassVar[str] = "apps_row"


class WhereConfig(ComponentConfig):
    """Rows of another data set for which ``expression`` holds; ``dataset.where=EXPRESSION`` is short for it."""

    name: str = "where"
    of: DatasetField  # pyright: ignore[reportInvalidTypeForm]
    """The data set."""
    expression: str
    """Comparisons of columns, joined by ``and``, ``or``, ``not``: ``level in [3, 4, 5] and dataset == 'MATH'``.
    Text that says a number, as in CSV, compares with numbers as one."""

    @property
    def downloads(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.of.downloads

    @classmethod
    def recipe_of(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the data set goes with."""
        of = options.get("of")
        if not isinstance(of, Mapping):
            return {}
        return Registry().load("dataset", str(of.get("name"))).recipe_of(of)

    @model_validator(mode="after")
    def _readable(self) -> WhereConfig:
        from rlhf_plugin_verifiers.datasets.where import Where

        Where(self.expression)
        return self

    def preflight(self, ctx: BuildContext) -> None:
        self.of.preflight(ctx)

    def build(self, ctx: BuildContext) -> FilteredRows:
        from rlhf_plugin_verifiers.datasets.where import FilteredRows, Where

        return FilteredRows(self.of.build(ctx), Where(self.expression), say=ctx.rank == 0)


class RlvrDataConfig(AdaptedConfig):
    """RLVR data as published (RLVR-GSM-MATH-IF-Mixed-Constraints, RLVR-IFeval, IF_multi_constraints_upto5):
    ``messages``, ``ground_truth`` as text, JSON or a Python literal, and ``dataset``, by which the reward ``by_row``
    chooses the verifier. Ids from ``key``; JSON lines or Parquet."""

    name: str = "rlvr"
    convert: ClassVar[str] = "rlvr_row"
