"""A recipe as it is written: stages with settings, checked for names, references and circles, in an order to run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError, did_you_mean, parse_settings
from rlhf_plugin_recipes.files import read_mapping, refuse_unknown
from rlhf_plugin_recipes.kinds import KINDS, Kind

REFERENCE = re.compile(r"\$\{([^{}]*)\}")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Stage:
    """One stage."""

    name: str
    kind: Kind
    kind_name: str
    settings: Mapping[str, Any]
    """As written, ``${vars...}`` filled in, ``${stages...}`` not."""
    needs: tuple[str, ...]
    show: tuple[str, ...]
    """Figures of its result for the summary; empty for a few of them."""


@dataclass(frozen=True)
class Recipe:
    """A file's stages, each after those it needs."""

    name: str
    file: Path
    about: str
    stages: tuple[Stage, ...]

    def stage(self, name: str) -> Stage:
        stages = {stage.name: stage for stage in self.stages}
        if name not in stages:
            raise ConfigError(
                f"there is no stage '{name}'",
                where=str(self.file),
                fix=did_you_mean(name, stages) or f"one of: {', '.join(stages)}",
            )
        return stages[name]

    def after(self, name: str) -> set[str]:
        names = {self.stage(name).name}
        for stage in self.stages:
            names |= {stage.name} if names & set(stage.needs) else set()
        return names

    def before(self, name: str) -> set[str]:
        direct = self.stage(name).needs
        return {*direct, *(far for one in direct for far in self.before(one))}


def read_recipe(file: Path, settings: Sequence[str] = ()) -> Recipe:
    data = read_mapping(file, settings)
    refuse_unknown(str(file), data, ("name", "about", "vars", "stages"))
    sections = data.get("stages")
    if not isinstance(sections, dict) or not sections:
        raise ConfigError("a recipe needs stages", where=str(file), fix="stages: {sft: {kind: train, algo: sft}}")
    variables = data.get("vars") or {}
    if not isinstance(variables, dict):
        raise ConfigError("vars must be a mapping", where=str(file), fix="vars: {steps: 20}")
    for name in (*sections, *variables):
        if not isinstance(name, str):
            fix = f"quotes around it: YAML reads yes, no, on, off and numbers as values, and this one as {name!r}"
            raise ConfigError("a name of a stage or a variable is not text", where=str(file), fix=fix)
    _check_variables(settings, sections, variables, file)
    stages = {str(name): _stage(str(name), section, variables, file) for name, section in sections.items()}
    for stage in stages.values():
        _check_references(stage, stages, file)
    return Recipe(str(data.get("name") or file.stem), file, str(data.get("about", "")).strip(), _ordered(stages, file))


def references(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(Dotted key, what stands between the braces) of every reference."""
    if isinstance(value, str):
        yield from ((key, match.group(1).strip()) for match in REFERENCE.finditer(value))
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from references(one, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for n, one in enumerate(value):
            yield from references(one, f"{key}[{n}]")


def fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Put values in the place of references; one that is a whole text keeps its type, others are left."""
    if isinstance(value, Mapping):
        return {key: fill(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [fill(one, values) for one in value]
    if not isinstance(value, str):
        return value
    reference = REFERENCE.fullmatch(value)
    if reference and (name := reference.group(1).strip()) in values:
        return values[name]
    return REFERENCE.sub(lambda match: str(values.get(match.group(1).strip(), match.group(0))), value)


def _check_variables(
    settings: Sequence[str], sections: Mapping[str, Any], variables: Mapping[str, Any], file: Path
) -> None:
    """Refuse a variable that is set for this call and that no stage uses: a slip would change nothing, unseen."""
    used = {reference for _, reference in references(sections)}
    for name in parse_settings(settings).get("vars") or {}:
        if f"vars.{name}" not in used:
            used_variables = [key for key in variables if f"vars.{key}" in used]
            fix = did_you_mean(name, used_variables) or f"vars: {', '.join(used_variables) or 'none'}"
            raise ConfigError(f"no stage uses '${{vars.{name}}}'", where=f"{file}, --set vars.{name}", fix=fix)


def _stage(name: str, section: Any, variables: Mapping[str, Any], file: Path) -> Stage:
    where = f"{file}, stage '{name}'"
    if not NAME.fullmatch(name):
        raise ConfigError(f"'{name}' cannot be a stage's name", where=str(file), fix="letters, digits, _ and -")
    if not isinstance(section, dict) or "kind" not in section:
        raise ConfigError(f"stage '{name}' has no kind", where=str(file), fix=f"kind: one of {', '.join(KINDS)}")
    kind = str(section["kind"])
    if kind not in KINDS:
        fix = (
            did_you_mean(kind, KINDS)
            or f"one of: {', '.join(KINDS)}; an algorithm is `kind: train` with `algo: {kind}`"
        )
        raise ConfigError(f"there is no kind of stage '{kind}'", where=where, fix=fix)
    values = {f"vars.{key}": value for key, value in variables.items()}
    for key, reference in references(section):
        if reference.startswith("vars.") and reference not in values:
            fix = did_you_mean(reference, values) or f"vars: {', '.join(variables) or 'none'}"
            raise ConfigError(f"'${{{reference}}}' is not defined", where=f"{where}, {key}", fix=fix)
    filled = fill(section, values)
    after, show = (_texts(filled.get(key), f"{where}, {key}") for key in ("after", "show"))
    settings = {key: value for key, value in filled.items() if key not in ("kind", "after", "show")}
    direct = [r.split(".")[1] for _, r in references(settings) if r.startswith("stages.") and r.count(".") == 2]
    return Stage(name, _kind_of(kind, settings, where), kind, settings, tuple(dict.fromkeys([*after, *direct])), show)


def _kind_of(name: str, settings: dict[str, Any], where: str) -> Kind:
    """The kind; that of ``command`` with its words and outputs taken out of the settings."""
    kind = KINDS[name]
    if name != "command":
        return kind
    run, outputs = settings.pop("run", None), settings.pop("outputs", {})
    if not isinstance(run, str) or not run.strip():
        raise ConfigError("a command stage needs run", where=where, fix="run: reward evaluate")
    if not isinstance(outputs, dict) or not all(isinstance(one, str) for one in outputs.values()):
        raise ConfigError("outputs must map names to files", where=where, fix="outputs: {data: pairs.jsonl}")
    return Kind(tuple(run.split()), {**outputs, "result": "result.json"}, {}, kind.about)


def _texts(value: Any, where: str) -> tuple[str, ...]:
    rows = [value] if isinstance(value, str) else value or []
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise ConfigError("must be a name or a list of names", where=where)
    return tuple(rows)


def _check_references(stage: Stage, stages: Mapping[str, Stage], file: Path) -> None:
    where = f"{file}, stage '{stage.name}'"
    for key, reference in references(stage.settings):
        words = reference.split(".")
        if reference == "folder":
            continue
        if words[0] != "stages" or len(words) != 3:
            raise ConfigError(
                f"'${{{reference}}}' means nothing",
                where=f"{where}, {key}",
                fix="${stages.NAME.OUTPUT}, ${vars.NAME} or ${folder}",
            )
        if words[1] in stages and words[2] not in stages[words[1]].kind.outputs:
            outputs = stages[words[1]].kind.outputs
            raise ConfigError(
                f"stage '{words[1]}' has no output '{words[2]}'",
                where=f"{where}, {key}",
                fix=did_you_mean(words[2], outputs) or f"one of: {', '.join(outputs)}",
            )
    for name in stage.needs:
        if name not in stages:
            fix = did_you_mean(name, stages) or f"one of: {', '.join(stages)}"
            raise ConfigError(f"there is no stage '{name}'", where=where, fix=fix)


def _ordered(stages: Mapping[str, Stage], file: Path) -> tuple[Stage, ...]:
    done: dict[str, Stage] = {}
    while len(done) < len(stages):
        ready = next((s for s in stages.values() if s.name not in done and set(s.needs) <= set(done)), None)
        if ready is None:
            circle = _circle({name: stage for name, stage in stages.items() if name not in done})
            raise ConfigError(
                f"stages depend on each other in a circle: {' -> '.join(circle)}",
                where=str(file),
                fix="each stage may use only what earlier ones make",
            )
        done[ready.name] = ready
    return tuple(done.values())


def _circle(left: Mapping[str, Stage]) -> list[str]:
    path = [next(iter(left))]
    while path[-1] not in path[:-1]:
        path.append(next(name for name in left[path[-1]].needs if name in left))
    return path[path.index(path[-1]) :]
