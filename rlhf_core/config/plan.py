"""The plan of a run: everything that decides it, resolved before anything is built."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from rlhf_core._version import __version__
from rlhf_core.config.load import validate
from rlhf_core.config.run import RunConfig
from rlhf_core.data.jsonl import json_values, read_record, record_of_run
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.errors import ConfigError, PluginError

LIBRARIES = ("torch", "transformers", "accelerate", "peft", "datasets", "numpy", "tokenizers")


@dataclass(frozen=True)
class Plan:
    """What ``plan.json`` holds."""

    config: Mapping[str, Any]
    components: tuple[Mapping[str, str], ...]
    """kind, name, distribution, version, value of every selected component."""
    versions: Mapping[str, str]
    seed: int
    world_size: int
    conditions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """``KIND NAME`` -> what the component says about the machine (``ComponentConfig.conditions``), if anything."""
    rows: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Source of the data set -> number of rows to train on and held out; empty where they were not read beforehand."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Path of what the run reads -> digest, hub id -> commit; empty in a plan that nobody has started."""
    extensions: tuple[Mapping[str, Any], ...] = ()
    """Of a run that was extended: ``at_step``, ``time`` and ``changes`` (key -> old and new value), oldest first."""

    def to_json(self) -> dict[str, Any]:
        """JSON values, in a stable order."""
        values = {**asdict(self), "components": [*map(dict, self.components)], "extensions": [*self.extensions]}
        values = {name: value for name, value in values.items() if value or name not in ("inputs", "extensions")}
        return {**values, "digest": digest_of(values)}

    @property
    def digest(self) -> str:
        """Content hash of the plan (16 hex digits)."""
        return str(self.to_json()["digest"])

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Load a ``plan.json``; errors as of `record_of_run`."""
        data = read_record(path)
        with record_of_run(path):
            data |= {"config": {**data["config"]}, "components": tuple(data["components"])}
            data["extensions"] = tuple(data.get("extensions", ()))
            return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})


def digest_of(values: Mapping[str, Any]) -> str:
    """Content hash of what a ``plan.json`` holds besides its ``digest`` (16 hex digits)."""
    return hashlib.sha256(json.dumps(json_values(values), sort_keys=True).encode()).hexdigest()[:16]


def library_versions() -> dict[str, str]:
    """Installed versions, from metadata alone."""
    core = {"python": platform.python_version(), "rlhf-core": __version__}
    return core | {name: _installed_version(name) for name in LIBRARIES}


@functools.cache  # parsing the metadata of seven libraries takes 0.1 s, and a run asks three times
def _installed_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def make_plan(registry: Registry, config: RunConfig, world_size: int) -> Plan:
    """Match the components to each other, record where each comes from, and freeze the registry."""
    check_fit(config)
    check_environment_fit(config)
    chosen = list(config.components())
    rows = {kind + part.name: registry.selected(kind, part).describe() for kind, part in chosen}
    registry.prefer(rows.values())
    registry.freeze()
    return Plan(
        config=config.model_dump(mode="json"),
        components=tuple(rows[key] for key in sorted(rows)),
        versions=library_versions(),
        seed=config.seed,
        world_size=world_size,
        conditions={f"{kind} {part.name}": facts for kind, part in chosen if (facts := part.conditions())},
    )


def check_fit(config: RunConfig) -> None:
    """Match ``Loss.consumes`` to what the trainer feeds."""
    feeds = getattr(config.trainer, "feeds", None)
    if config.loss is None or feeds is None:
        return
    wants = config.loss.consumes
    if wants is not None and wants != feeds:
        raise PluginError(
            f"loss '{config.loss.name}' consumes {wants}, but trainer '{config.trainer.name}' feeds {feeds}",
            fix=f"choose a loss that consumes {feeds}: rlhf plugins list --kind loss",
        )


def check_environment_fit(config: RunConfig) -> None:
    """An agent that plays in an environment has one, and an environment has an agent that plays in it, now and then."""
    plays = getattr(config.agent, "plays_environment", False)
    if config.agent is not None and plays and config.environment is None:
        raise ConfigError(
            f"agent '{config.agent.name}' needs an environment, and the run has none",
            fix="--env tools; rlhf plugins list --kind environment",
        )
    if config.environment is not None and not plays:
        agent = "no agent" if config.agent is None else f"agent '{config.agent.name}'"
        raise ConfigError(
            f"{agent} does not use environment '{config.environment.name}'",
            why="only an agent that plays in environments calls it",
            fix="--set agent.name=multi_turn, or leave the environment out",
        )
    samples = not config.trainer.learns_from_rows or getattr(config.trainer, "sample_prompts", 0)
    if config.environment is not None and not samples:
        raise ConfigError(
            f"algorithm '{config.trainer.name}' does not use environment '{config.environment.name}'",
            why="it learns from rows of a dataset and samples nothing",
            fix="an algorithm that samples (--algo grpo), or leave the environment out; to evaluate a policy in it "
            "while it is trained: --set trainer.sample_prompts=64",
        )


def reload(registry: Registry, plan: Plan) -> RunConfig:
    """Validate the plan's configuration again, from this process's own entry points."""
    for planned in plan.components:
        installed = registry.find(planned["kind"], f"{planned['distribution']}/{planned['name']}").describe()
        if installed != planned:
            raise PluginError(
                f"{planned['kind']} '{planned['name']}' differs between the plan and this process",
                why=f"planned {dict(planned)}, found {installed}",
                fix="install the same packages on every machine",
            )
    registry.prefer(plan.components)
    return validate(registry, plan.config)
