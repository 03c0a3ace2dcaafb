"""Settings that change over the steps of a run (``trainer.schedules``), and what is refused of them beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_validator, model_validator

from rlhf_core.config import Config, ConfigError, RunConfig, did_you_mean
from rlhf_core.rl import KLSettings, OnlineTrainerConfig

ENTROPY = "trainer.entropy_coefficient"
OF_TRAINER = (
    "trainer.sampling.temperature",
    "trainer.kl.coefficient",
    ENTROPY,
    "trainer.overlong.weight",
    "trainer.optimizer.max_grad_norm",
)
"""Settings of the trainer that a step reads anew. A reward names its own: ``changeable`` of its Config, patterns."""
SHOTS = "dataset.shots"
"""Not a setting elsewhere: how many of ``examples`` stand before each training prompt."""
Value = float | str


class Schedule(Config):
    """One setting, from one value to another."""

    setting: str
    """Its dotted key."""
    first: Value | None = Field(default=None, alias="from")
    """None is what the setting says."""
    last: Value = Field(alias="to")
    start: int = Field(default=1, ge=0)
    """Last step with the first value."""
    end: int | None = Field(default=None, ge=1)
    """First step with the last value."""
    shape: Literal["linear", "cosine", "step", "adaptive"] = "linear"
    """``step`` keeps the first value until ``end``, as words do with any. ``adaptive``, of
    ``trainer.entropy_coefficient``: see :class:`rlhf_plugin_schedule.adaptive.AdaptiveEntropy`; ``to`` is its most."""
    target: float | None = Field(default=None, gt=0)
    """Of ``adaptive``: entropy per token in nats that the policy is not to fall under."""
    delta: float = Field(default=0.005, gt=0)
    """Of ``adaptive``: what a step adds or takes off."""
    examples: str | None = None
    """Of ``dataset.shots``: rows with a prompt and a completion."""

    @field_validator("first", "last")
    @classmethod
    def _finite(cls, value: Value | None) -> Value | None:
        if isinstance(value, str):  # a number in quotes is a number, as everywhere else
            with suppress(ValueError):
                value = float(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{value} is not a finite number", fix="give a number")
        return value

    @model_validator(mode="after")
    def _of_its_shape(self) -> Schedule:
        others = {"target", "delta"} if self.shape != "adaptive" else {"start", "end"}
        if extra := sorted(others & self.model_fields_set):
            raise ConfigError(f"{extra[0]} has no effect with shape {self.shape}", fix="leave it out")
        missing = "end" if self.shape != "adaptive" else "target"
        if getattr(self, missing) is None:
            raise ConfigError(f"a schedule of shape {self.shape} needs {missing}", fix=f"give {missing}")
        return self

    def value(self, step: int, now: Any) -> Any:
        """Value in a step, counted from 1; ``now`` is what the setting says. Not of ``adaptive``."""
        assert self.end is not None
        first: Any = now if self.first is None else self.first
        if isinstance(self.last, str):
            return self.last if step >= self.end else first
        share = min(1.0, max(0.0, (step - self.start) / (self.end - self.start)))
        if self.shape == "step":
            share = float(share == 1.0)
        elif self.shape == "cosine":
            share = 0.5 - 0.5 * math.cos(math.pi * share)
        return self.last if share == 1.0 else first + (self.last - first) * share


def read(settings: Sequence[Mapping[str, Any]]) -> list[Schedule]:
    """The schedules that ``trainer.schedules`` lists."""
    return [Schedule.from_settings(one, where=f"trainer.schedules[{n}]") for n, one in enumerate(settings)]


def check_schedules(trainer: OnlineTrainerConfig, run: RunConfig) -> None:
    """Refuse schedules of what no step reads, that end before they begin, or that change nothing.

    Raises:
        ConfigError: names the schedule.
    """
    schedules = read(trainer.schedules)
    if trainer.rollouts.max_staleness:
        raise ConfigError(
            "trainer.schedules cannot be combined with trainer.rollouts.max_staleness",
            why="a batch that was sampled ahead has the values of another step",
            fix="leave one of them out",
        )
    for n, one in enumerate(schedules):
        where = f"trainer.schedules[{n}]: {one.setting}"
        if one.setting in [other.setting for other in schedules[:n]]:
            raise ConfigError("a setting has two schedules", where=where, fix="leave one of them out")
        if one.shape == "adaptive":
            check_adaptive(one, run, where)
        if one.end is not None and one.end <= one.start:
            raise ConfigError(
                f"the schedule ends at step {one.end}, before it begins at {one.start}", where=where, fix="raise end"
            )
        if one.end is not None and one.start >= trainer.steps:
            why = f"the run has {trainer.steps} steps"
            raise ConfigError(f"the schedule begins at step {one.start}", where=where, why=why, fix="lower start")
        if (one.setting == SHOTS) != (one.examples is not None):
            raise ConfigError(f"{SHOTS} and examples belong together", where=where, fix="examples: FILE.jsonl")
        if one.examples is not None:
            check_shots(one, where)
            continue
        _check_setting(one, run, where)
        _check_effect(one, trainer, run, where)


def _check_setting(one: Schedule, run: RunConfig, where: str) -> None:
    """The setting is there, is read in every step, and takes both values."""
    section, _, rest = one.setting.partition(".")
    known = OF_TRAINER if section == "trainer" else tuple(getattr(getattr(run, section, None), "changeable", ()))
    found = walk(run, one.setting.split("."))
    if one.setting not in OF_TRAINER and not any(fnmatch(rest, pattern) for pattern in known):
        every = [*OF_TRAINER, *(f"reward.{name}" for name in getattr(run.reward, "changeable", ()))]
        raise ConfigError(
            "the setting does not change during a run" if found else "there is no such setting",
            where=where,
            why=f"a step reads anew {', '.join(every)}",
            fix=did_you_mean(one.setting, every) or "leave the schedule out",
        )
    if found is None:
        raise ConfigError("there is no such setting", where=where, fix="check its name")
    parent, name = found
    for value in [one.last] if one.first is None else [one.first, one.last]:
        _check_value(parent, name, value, where)


def check_adaptive(one: Schedule, run: RunConfig, where: str) -> None:
    """Only the entropy's coefficient adapts, and between 0 and its most."""
    if one.setting != ENTROPY:
        raise ConfigError("no measure tells it how to adapt", where=where, fix=f"shape adaptive is for {ENTROPY}")
    first = getattr(run.trainer, "entropy_coefficient", 0.0) if one.first is None else one.first
    if isinstance(first, str) or isinstance(one.last, str):
        raise ConfigError("it has words as values", where=where, fix="give numbers as from and to")
    if not 0 < one.last >= first:
        raise ConfigError(f"its most, {one.last}, is not above 0 and its start, {first}", where=where, fix="raise to")


def check_shots(one: Schedule, where: str) -> list[tuple[str, str]]:
    """(Prompt, completion) of the examples, if there are as many as the schedule wants."""
    from rlhf_core.data import check_file
    from rlhf_core.data.files import read_rows

    assert one.examples is not None
    check_file(one.examples, "file of examples", "examples")
    rows = [(str(row.get("prompt") or ""), str(row.get("completion") or "")) for row in read_rows(one.examples).rows]
    if not all(prompt and completion for prompt, completion in rows):
        raise ConfigError(f"a row of '{one.examples}' has no prompt, or no completion", where=where, fix="fill both")
    for count in (one.first, one.last):
        if not isinstance(count, int | float) or not 0 <= count <= len(rows) or count != int(count):
            why = f"'{one.examples}' has {len(rows)}"
            raise ConfigError(f"{count} is no number of examples", where=where, why=why, fix="give from and to")
    return rows


def _check_value(parent: BaseModel, name: str, value: Value, where: str) -> None:
    field = type(parent).model_fields[name]
    annotated: Any = Annotated[field.annotation, field]  # pyright: ignore[reportInvalidTypeForm]
    try:
        TypeAdapter(annotated).validate_python(value)
    except ValidationError as error:
        raise ConfigError(
            f"{value if isinstance(value, str) else format(value, 'g')} is no value of it: {error.errors()[0]['msg']}",
            where=where,
        ) from error


def _check_effect(one: Schedule, trainer: OnlineTrainerConfig, run: RunConfig, where: str) -> None:
    """Each value has the effect that its name says."""
    needs = ""
    if one.setting == "trainer.sampling.temperature" and not (one.last and one.first != 0):
        needs = "a temperature above 0: at 0 the completions of a group are the same"
    if one.setting == "trainer.kl.coefficient" and type(trainer.kl) is not KLSettings:
        needs = f"a trainer without a KL controller of its own, which '{trainer.name}' has"
    if one.setting == "trainer.kl.coefficient" and not (trainer.kl.track or trainer.kl.coefficient):
        needs = "trainer.kl.track=true, so that there is a reference policy"
    fixed = ("trainer.kl.coefficient", ENTROPY)
    if one.setting in fixed and hasattr(run.advantage, "critic"):
        needs = "an algorithm without a critic"
    if one.setting == "trainer.overlong.weight" and not trainer.overlong.cache:
        needs = "trainer.overlong.cache above 0"
    if one.setting.startswith("reward.") and trainer.reward_workers:
        needs = "trainer.reward_workers=0: worker processes keep the reward as it was"
    if needs:
        raise ConfigError("the schedule cannot have an effect", where=where, why=f"it needs {needs}")


def walk(model: Any, path: Sequence[str]) -> tuple[BaseModel, str] | None:
    """The section that has the setting at the end of a path, and its name there; None if there is none."""
    for part in path[:-1]:
        model = model.get(part) if isinstance(model, Mapping) else getattr(model, part, None)
    known = isinstance(model, BaseModel) and path[-1] in type(model).model_fields
    return (model, path[-1]) if known and isinstance(model, BaseModel) else None


def changed(model: Any, path: Sequence[str], value: float) -> Any:
    """A configuration with one setting replaced."""
    first, *rest = path
    if isinstance(model, Mapping):
        return {**model, first: changed(model[first], rest, value)}
    new = changed(getattr(model, first), rest, value) if rest else value
    return model.model_copy(update={first: new})
