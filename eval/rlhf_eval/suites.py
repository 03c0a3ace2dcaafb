"""The suites: which rows, the form of the prompts, and which verifier judges; entry points in ``rlhf.benchmark`` name
subclasses of :class:`SuiteConfig`. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlhf_core.config import ComponentConfig, ConfigError, component
from rlhf_core.training import SamplingSettings
from rlhf_eval.styles import GSM8K_COT, QUESTION_ANSWER, QUESTION_ONLY, R1_ZERO_STYLE, Style

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext

VerifierField = component("verifier")


class SuiteConfig(ComponentConfig):
    """What all suites have in common."""

    component: ClassVar[str] = "rlhf_eval.benchmark:SuiteBenchmark.from_config"

    styles: ClassVar[Mapping[str, Style]] = {"plain": Style(), "qa": QUESTION_ANSWER}
    """Forms of the prompts, by the name that ``style`` takes; the first is the default."""
    local: ClassVar[str] = "jsonl"
    """Data set component that reads a local copy of the published file."""
    hub: ClassVar[Mapping[str, Any]] = {}
    """Data set section for the hub, used without ``path``."""
    own_verifier: ClassVar[Mapping[str, Any] | None] = None
    """Verifier where the style names none."""

    path: str | None = None
    """Local file with the rows, as published (``.gz`` too); without it they come from the hub."""
    dataset: dict[str, Any] | None = None
    """A whole ``dataset`` section instead of ``path``."""
    split: Literal["auto", "train", "heldout"] = "auto"
    """``auto``: the held-out rows if the data set keeps them apart, otherwise all."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first rows."""
    style: str = ""
    """Form of the prompts: one of the suite's styles, the first if empty."""
    template: str | None = None
    """Text around each question, with ``{prompt}``; instead of the style's."""
    prompt_format: Literal["auto", "chat", "raw"] | None = None
    """Instead of the style's: the model's chat template, or plain text."""
    shots: int = Field(default=0, ge=0)
    """Worked examples before each question: the first rows of ``shots_path``."""
    shots_path: str | None = None
    """File in the same form with the worked examples, such as the training split."""
    verifier: VerifierField | None = None  # pyright: ignore[reportInvalidTypeForm]
    """The verifier that judges, instead of the style's or the suite's."""
    where: str | None = None
    """Only the rows for which this holds, such as ``level in [4, 5]``; as ``dataset.where``."""
    pass_from: float = Field(default=1.0, gt=0, le=1)
    """The least value of a verdict that counts as right in pass@k, best@k, majority@k and pass rates: below 1 for
    verdicts with partial credit, such as the share of instructions that are followed."""
    sampling: SamplingSettings = SamplingSettings(max_tokens=1024, temperature=0.0)
    """How completions are drawn; 0 as temperature is greedy. Without ``stop`` the style's stop strings are used."""
    keep_stop: bool | None = None
    """Whether a stop string is left in what is judged; None takes the style's."""
    samples: int = Field(default=1, ge=1)
    """Completions of each prompt."""
    chunk: int = Field(default=512, ge=1)
    """Completions given to the engine at once, which is also what a kill can lose. Rows and progress come every few
    seconds whatever it is; a chunk ends with its slowest, so larger ones waste less."""
    workers: int = Field(default=2, ge=1)
    """Verifier processes."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Seconds for one verdict; None takes the verifier's."""

    @model_validator(mode="before")
    @classmethod
    def _own_verifier(cls, data: Any) -> Any:
        overrides = data.get("verifier") if isinstance(data, dict) else None
        if not isinstance(overrides, dict) or "name" in overrides:
            return data
        style = cls.styles.get(str(data.get("style") or next(iter(cls.styles))))
        default = (style and style.verifier) or cls.own_verifier
        return {**data, "verifier": {**default, **overrides}} if default else data

    @model_validator(mode="after")
    def _fits(self) -> SuiteConfig:
        styles = ", ".join(self.styles)
        if self.style and self.style not in self.styles:
            raise ConfigError(f"suite '{self.name}' has no style '{self.style}'", fix=f"choose from: {styles}")
        if self.template is not None and "{prompt}" not in self.template:
            raise ConfigError(
                "the template has no {prompt}",
                why=f"it is {self.template[:80]!r}",
                fix='put {prompt} where the question goes, for example "Q: {prompt}\\nA:"',
            )
        if self.path is not None and self.dataset is not None:
            raise ConfigError("both path and dataset are given", fix="leave one out")
        if self.samples > 1 and self.sampling.temperature == 0:
            raise ConfigError(
                f"{self.samples} samples of a prompt at temperature 0 are all the same",
                fix="--temperature 1, or one sample",
            )
        if self.shots and not self.shots_path:
            raise ConfigError(f"{self.shots} shots, but no file to take them from", fix="--shots-data train.jsonl")
        if self.shots and not self.how.shots:
            raise ConfigError(
                f"style '{self.style_name}' cannot take worked examples",
                why="the data set's solutions are not written in its form",
                fix="--shots 0, or another style",
            )
        return self

    @property
    def style_name(self) -> str:
        return self.style or next(iter(self.styles))

    @property
    def how(self) -> Style:
        return self.styles[self.style_name]

    def resolved(self, ctx: BuildContext) -> SuiteConfig:
        """The same with everything filled in that style and suite decide."""
        chosen = self.verifier or self.how.verifier or self.own_verifier
        if chosen is None:
            raise ConfigError(
                f"suite '{self.name}' does not say which verifier judges",
                fix="--verifier NAME; rlhf plugins list --kind verifier",
            )
        sampling = self.sampling.model_copy(update={"stop": self.sampling.stop or self.how.stop})
        fields = {
            **self.model_dump(),
            "style": self.style_name,
            "template": self.template or self.how.template,
            "prompt_format": self.prompt_format or self.how.prompt_format,
            "sampling": sampling.model_dump(),
            "keep_stop": self.how.keep_stop if self.keep_stop is None else self.keep_stop,
            "verifier": dict(chosen) if isinstance(chosen, Mapping) else chosen.model_dump(),
        }
        return type(self).model_validate(fields, context={"registry": ctx.registry})

    def rows_of(self, path: str | None) -> dict[str, Any]:
        """The ``dataset`` section that reads a file, or the hub's copy."""
        if path is not None:
            return {"name": self.local, "path": path, **self.columns}
        if self.dataset is not None:
            return dict(self.dataset)
        if not self.hub:
            raise ConfigError(f"suite '{self.name}' needs rows", fix="--data FILE.jsonl, or --dataset NAME")
        return dict(self.hub)

    @property
    def columns(self) -> dict[str, Any]:
        """Further keys of the data set section for a local file."""
        return {}

    def preflight(self, ctx: BuildContext) -> None:
        """Read the rows and check that each can be judged; a dry run downloads none."""
        from rlhf_eval.benchmark import check_rows

        if ctx.dry_run and self.path is None:
            return
        check_rows(self.resolved(ctx), ctx)


class Gsm8kSuite(SuiteConfig):
    """GSM8K (Cobbe et al. 2021, arXiv:2110.14168): word problems with a number as the answer."""

    name: str = "gsm8k"
    local: ClassVar[str] = "gsm8k"
    styles: ClassVar[Mapping[str, Style]] = {
        "plain": Style(verifier={"name": "gsm8k"}),
        "r1_zero": R1_ZERO_STYLE,
        "question_only": QUESTION_ONLY,
        "cot": GSM8K_COT,
        "qa": QUESTION_ANSWER,
    }
    own_verifier: ClassVar[Mapping[str, Any] | None] = {"name": "gsm8k"}
    hub: ClassVar[Mapping[str, Any]] = {
        "name": "hub",
        "path": "openai/gsm8k",
        "subset": "main",
        "split": "test",
        "columns": {"prompt": "question"},
        "answer_pattern": r"#### (.+)",
    }


MATH_SUBJECTS = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
    "precalculus",
)  # fmt: skip


class MathSuite(SuiteConfig):
    """MATH (Hendrycks et al. 2021, arXiv:2103.03874), by default its 500 test rows of Lightman et al. 2023."""

    name: str = "math"
    sampling: SamplingSettings = SamplingSettings(max_tokens=2048, temperature=0.0)
    local: ClassVar[str] = "math"
    styles: ClassVar[Mapping[str, Style]] = {
        "plain": Style("{prompt}\n\nPut your final answer within \\boxed{}."),
        "r1_zero": R1_ZERO_STYLE,
        "question_only": QUESTION_ONLY,
        "qa": Style("Problem:\n{prompt}\n\nSolution:", "raw", ("Problem:", "\n\n\n")),
    }
    own_verifier: ClassVar[Mapping[str, Any] | None] = {"name": "math"}
    hub: ClassVar[Mapping[str, Any]] = {
        "name": "hub",
        "path": "HuggingFaceH4/MATH-500",
        "split": "test",
        "columns": {"prompt": "problem"},
    }


class MathFullSuite(MathSuite):
    """MATH's whole test split, 5000 rows of seven subjects."""

    name: str = "math_full"
    hub: ClassVar[Mapping[str, Any]] = {
        "sources": [
            {
                "name": "hub",
                "path": "EleutherAI/hendrycks_math",
                "subset": subject,
                "split": "test",
                "label": subject,
                "columns": {"prompt": "problem", "answer": "solution"},
            }
            for subject in MATH_SUBJECTS
        ]
    }


class AimeSuite(MathSuite):
    """The American Invitational Mathematics Examination, by default the 90 problems of 2022 to 2024."""

    name: str = "aime"
    hub: ClassVar[Mapping[str, Any]] = {
        "name": "hub",
        "path": "AI-MO/aimo-validation-aime",
        "columns": {"prompt": "problem"},
    }


class IFEvalSuite(SuiteConfig):
    """IFEval (Zhou et al. 2023, arXiv:2311.07911): instructions that a program can check."""

    name: str = "ifeval"
    local: ClassVar[str] = "ifeval"
    own_verifier: ClassVar[Mapping[str, Any] | None] = {"name": "ifeval", "reference": "published"}
    sampling: SamplingSettings = SamplingSettings(max_tokens=4096, temperature=0.0)
    hub: ClassVar[Mapping[str, Any]] = {"name": "hub", "path": "google/IFEval", "columns": {"id": "key"}}


class IFBenchSuite(IFEvalSuite):
    """IFBench (Pyatkin et al. 2025, arXiv:2507.02833): 58 further instructions; judged loosely, as its paper does."""

    name: str = "ifbench"
    own_verifier: ClassVar[Mapping[str, Any] | None] = {"name": "ifbench", "reference": "published"}
    hub: ClassVar[Mapping[str, Any]] = {"name": "hub", "path": "allenai/IFBench_test", "columns": {"id": "key"}}


class MbppSuite(SuiteConfig):
    """MBPP, sanitized (Austin et al. 2021, arXiv:2108.07732): a function that passes the row's asserts."""

    name: str = "mbpp"
    local: ClassVar[str] = "mbpp"
    styles: ClassVar[Mapping[str, Style]] = {"plain": Style("{prompt}\n\nAnswer with one Python code block.")}
    own_verifier: ClassVar[Mapping[str, Any] | None] = {"name": "mbpp"}
    sampling: SamplingSettings = SamplingSettings(max_tokens=512, temperature=0.0)


class AppsSuite(SuiteConfig):
    """APPS (Hendrycks et al. 2021, arXiv:2105.09938): programs judged by what they print, or a function's values."""

    name: str = "apps"
    local: ClassVar[str] = "apps"
    styles: ClassVar[Mapping[str, Style]] = {"plain": Style("{prompt}\n\nAnswer with one Python code block.")}
    own_verifier: ClassVar[Mapping[str, Any] | None] = {"name": "apps"}
    sampling: SamplingSettings = SamplingSettings(max_tokens=2048, temperature=0.0)


class HumanEvalSuite(SuiteConfig):
    """HumanEval (Chen et al. 2021, arXiv:2107.03374): a function to complete from its docstring."""

    name: str = "humaneval"
    styles: ClassVar[Mapping[str, Style]] = {
        "plain": Style(
            "Complete this function. Answer with the whole function in one Python code block.\n\n```python\n{prompt}```"
        ),
        "completion": Style("{prompt}", "raw", ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(")),
    }
    own_verifier: ClassVar[Mapping[str, Any] | None] = {"name": "humaneval"}
    sampling: SamplingSettings = SamplingSettings(max_tokens=512, temperature=0.0)
    hub: ClassVar[Mapping[str, Any]] = {
        "name": "hub",
        "path": "openai/openai_humaneval",
        "split": "test",
        "columns": {"id": "task_id"},
    }

    @property
    def columns(self) -> dict[str, Any]:
        return {"columns": {"id": "task_id"}}


class PromptsSuite(SuiteConfig):
    """Any JSON lines or data set, any verifier, any template."""

    name: str = "prompts"
