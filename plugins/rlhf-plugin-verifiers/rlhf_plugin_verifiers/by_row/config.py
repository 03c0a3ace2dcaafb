"""The verifier that leaves each row to another."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from rlhf_core.config import Registry, component
from rlhf_core.rewards import VerifierConfig
from rlhf_plugin_verifiers.instructions.config import IFEvalConfig
from rlhf_plugin_verifiers.maths.config import Gsm8kConfig, MathConfig

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_core.data import Prompt

VerifierField = component("verifier")


def published() -> dict[str, VerifierConfig]:
    """For the sources of RLVR data as published."""
    return {"gsm8k": Gsm8kConfig(), "MATH": MathConfig(), "ifeval": IFEvalConfig(value="mean")}


@cache
def installed(name: str) -> VerifierConfig | None:
    """A verifier by its name, with its defaults."""
    registry = Registry()
    if name not in {n for entry in registry.entries("verifier") for n in (entry.name, entry.qualified)}:
        return None
    config: Any = registry.config("verifier", name)
    return config


def in_mode(verifier: Any, mode: str) -> Any:
    """A verifier in another mode, if it has it."""
    field = type(verifier).model_fields.get("mode")
    wanted = {"strict": ("strict",), "lenient": ("lenient", "loose")}.get(mode, ())
    new = next((m for m in wanted if field is not None and m in get_args(field.annotation)), None)
    return verifier if new is None else verifier.model_copy(update={"mode": new})


class ByRowConfig(VerifierConfig):
    """Judges each row by the verifier that a column of it names, for mixtures such as RLVR-GSM-MATH-IF.

    The reference is the row's answer, or its ``ground_truth`` in one of the published forms.
    """

    name: str = "by_row"
    component: ClassVar[str] = "rlhf_plugin_verifiers.by_row.verifier:ByRowVerifier"
    needs_answer: ClassVar[bool] = False
    mode: Literal["own", "strict", "lenient"] = "own"
    """The mode of all verifiers that have it (``lenient`` is ``loose`` to some); ``own`` leaves each as it is."""
    column: str = "dataset"
    """The column of the row."""
    verifiers: dict[str, VerifierField] = Field(default_factory=published)  # pyright: ignore[reportInvalidTypeForm]
    """Value of the column -> verifier, over ``{gsm8k: gsm8k, MATH: math, ifeval: {name: ifeval, value: mean}}``; other
    values are names of verifiers. ``{MATH: {mode: strict}}`` changes a setting of one."""

    @model_validator(mode="before")
    @classmethod
    def _over_published(cls, data: Any) -> Any:
        chosen = data.get("verifiers") if isinstance(data, dict) else None
        if not isinstance(chosen, dict):
            return data
        table: dict[str, Any] = dict(published())
        for key, value in chosen.items():
            changes = isinstance(value, dict) and "name" not in value and key in table
            table[key] = {**table[key].model_dump(), **value} if changes else value
        return {**data, "verifiers": table}

    @cached_property
    def table(self) -> dict[str, Any]:
        """Value of the column -> verifier in its mode, those that rows have named by themselves among them."""
        return {value: in_mode(verifier, self.mode) for value, verifier in self.verifiers.items()}

    def choose(self, prompt: Prompt) -> tuple[Any, Prompt]:
        """The verifier of a row and the prompt as that reads it; raises ValueError with the reason if there is none."""
        from rlhf_plugin_verifiers.by_row.rows import reference_of

        value = prompt.meta.get(self.column)
        if isinstance(value, list | tuple) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str) or not value:
            raise ValueError(f"the row has no text in column '{self.column}', which names its verifier")
        if value not in self.table and (named := installed(value)) is not None:
            self.table[value] = in_mode(named, self.mode)
        verifier = self.table.get(value)
        if verifier is None:
            raise ValueError(
                f"column '{self.column}' is {value!r}, and no verifier of that name is installed; name one with "
                f"verifier.verifiers={{{value}: NAME}}"
            )
        if prompt.answer is None and "ground_truth" in prompt.meta:
            reference = dict(reference_of(prompt.meta["ground_truth"]))
            answer = reference.pop("answer", None)
            prompt = replace(prompt, answer=answer, meta={**prompt.meta, **reference})
        return verifier, prompt

    @property
    def seconds(self) -> float:
        return max(float(getattr(v, "seconds", 0.0)) for v in self.verifiers.values())

    @property
    def busy_seconds(self) -> float:
        return max(float(getattr(v, "busy_seconds", 0.0)) for v in self.verifiers.values())

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(s for v in self.verifiers.values() for s in getattr(v, "secrets", ()))

    def preflight(self, ctx: BuildContext) -> None:
        """Check the verifiers that are named."""
        for verifier in self.verifiers.values():
            verifier.preflight(ctx)
