"""Criteria as data: the question, on which scale, and how much it counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from rlhf_core.config import Config, ConfigError, load_yaml

SHIPPED = Path(__file__).parent / "rubrics"


class BadGrades(ValueError):
    """Grades that do not fit the rubric; the text says which and why."""


class Criterion(Config):
    """One question about a response."""

    name: str = Field(pattern="^[a-z][a-z0-9_]*$")
    """Lower case letters, digits and underscores; a part of every score."""
    question: str = Field(min_length=1)
    """A higher grade means more of a yes."""
    scale: tuple[int, int] = (1, 5)
    """Worst and best grade."""
    weight: float = Field(default=1.0, gt=0)
    """How much it counts beside the others."""

    @field_validator("scale")
    @classmethod
    def _ordered(cls, scale: tuple[int, int]) -> tuple[int, int]:
        if scale[0] >= scale[1]:
            raise ConfigError(f"the scale from {scale[0]} to {scale[1]} is empty", fix="give [worst, best]: [1, 5]")
        return scale

    def normalised(self, grade: float) -> float:
        """A grade as a number from 0 (worst) to 1 (best)."""
        low, high = self.scale
        return (grade - low) / (high - low)


class Rubric(Config):
    """Some criteria."""

    criteria: tuple[Criterion, ...]

    @model_validator(mode="after")
    def _distinct(self) -> Rubric:
        names = [c.name for c in self.criteria]
        if not names:
            raise ConfigError("the rubric has no criteria", fix="give at least one, with a name and a question")
        for kind, values in (("name", names), ("question", [" ".join(c.question.split()) for c in self.criteria])):
            twice = next((v for v in values if values.count(v) > 1), None)
            if twice is not None:
                raise ConfigError(
                    f"two criteria of the rubric have the {kind} '{twice}'",
                    fix="remove one, or say how they differ",
                )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.criteria)

    @property
    def weights(self) -> tuple[float, ...]:
        total = sum(c.weight for c in self.criteria)
        return tuple(c.weight / total for c in self.criteria)

    def read(self, grades: Any) -> dict[str, float]:
        """Grades on their scales as numbers from 0 to 1."""
        if not isinstance(grades, Mapping):
            raise BadGrades(f"grades must be an object with {', '.join(self.names)}, not {str(grades)[:40]!r}")
        if missing := [n for n in self.names if n not in grades]:
            raise BadGrades(f"no grade for {', '.join(missing)}")
        if unknown := [str(n) for n in grades if n not in self.names]:
            raise BadGrades(f"the rubric has no criterion {', '.join(unknown)[:80]}")
        return {c.name: c.normalised(on_scale(c.name, grades[c.name], *c.scale)) for c in self.criteria}

    def value(self, normalised: Mapping[str, float]) -> float:
        """Weighted mean over the criteria, from 0 to 1."""
        return sum(w * normalised[c.name] for c, w in zip(self.criteria, self.weights))


def on_scale(name: str, value: Any, low: float, high: float) -> float:
    """A grade that is a number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadGrades(f"the grade for {name} must be a number from {low:g} to {high:g}, not {str(value)[:40]!r}")
    if not low <= value <= high:
        raise BadGrades(f"the grade {value:g} for {name} is outside its scale from {low:g} to {high:g}")
    return float(value)


def load_rubric(name: str) -> Rubric:
    """A rubric that comes with the plugin, by its name, or one of your own, by its file."""
    import yaml

    file = SHIPPED / f"{name}.yaml" if name.isidentifier() else Path(name).expanduser()
    try:
        content = load_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        shipped = ", ".join(sorted(f.stem for f in SHIPPED.glob("*.yaml")))
        raise ConfigError(
            f"there is no rubric '{name}'",
            where=str(file),
            why=str(error.strerror),
            fix=f"give a YAML file, or one of: {shipped}",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise ConfigError("the rubric is not YAML", where=str(file), why=why, fix="fix the file") from error
    if isinstance(content, list):
        content = {"criteria": content}
    if not isinstance(content, Mapping):
        holds = "nothing" if content is None else f"a {type(content).__name__}: {str(content)[:40]!r}"
        raise ConfigError(
            f"the rubric cannot be used: its file holds {holds}",
            where=str(file),
            fix="write criteria: and below it a list of name, question, scale: [worst, best] and weight",
        )
    try:
        return Rubric.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(p) for p in first["loc"])
        raise ConfigError(
            f"the rubric cannot be used: {first['msg'].removeprefix('Value error, ')}",
            where=f"{file}{': ' if key else ''}{key}",
            fix="each criterion has name, question, scale: [worst, best] and weight",
        ) from error


def _resolve(value: Any) -> Any:
    return load_rubric(value) if isinstance(value, str) else value


RubricField = Annotated[Rubric, BeforeValidator(_resolve)]
"""A setting that is a rubric's name, its file, or the rubric itself; the plan of a run keeps the criteria."""
