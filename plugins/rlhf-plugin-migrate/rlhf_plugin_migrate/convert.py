"""From another library's settings to ours: each key with its counterpart, and one configuration that validates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rlhf_core.config import ConfigError, Registry, RunConfig, merge_settings
from rlhf_plugin_migrate import rules
from rlhf_plugin_migrate.case import Case, Settings
from rlhf_plugin_migrate.hints import target_of
from rlhf_plugin_migrate.read import Given, nothing
from rlhf_plugin_migrate.tables import Entry, Table
from rlhf_plugin_migrate.targets import Targets, dataset_component

CHOOSERS = (".name", "dataset_name", "loss_type", "loss_mode", "scale_rewards", "normalize_advantages")
OFF = (False, -1, "no", "none")
SLOTS = ("trainer", "loss", "advantage", "reward", "dataset")


class Row(NamedTuple):
    """What became of one key."""

    key: str
    value: Any
    meaning: str
    """``same``, ``other``, ``unneeded``, ``unsupported`` or ``unknown``."""
    settings: Settings
    note: str


class Converted(NamedTuple):
    """A whole configuration in our names."""

    algorithm: str
    rows: list[Row]
    config: dict[str, Any]
    """Nested, as a file holds it."""


def convert(given: Given, table: Table, registry: Registry, algorithm: str, processes: int = 1) -> Converted:
    """Translate every key, in an order in which components are chosen before their settings."""
    chosen = {"trainer": algorithm}
    rows: dict[str, Row] = {}
    for key in sorted(given.settings, key=lambda key: not _chooses(key, table)):
        case = Case(given.settings, algorithm, Targets(registry, chosen), processes)
        rows[key] = row = convert_key(case, table, key, given.settings[key])
        for target, value in row.settings.items():
            slot = target.removesuffix(".name")
            if target.endswith(".name") and slot in SLOTS:
                chosen[slot] = dataset_component(str(value)) if slot == "dataset" else str(value)
    computed = "a value that only running the script gives"
    rows |= {key: Row(key, text, "unknown", {}, computed) for key, text in given.unread.items()}
    ordered = [rows[key] for key in (*given.settings, *given.unread)]
    config = nested({"trainer.name": algorithm, **{t: v for row in ordered for t, v in row.settings.items()}})
    _fit_rollout_batch(config)
    check(config, registry, chosen)
    return Converted(algorithm, ordered, config)


def convert_key(case: Case, table: Table, key: str, value: Any) -> Row:
    entry = table.find(key)
    if entry is None:
        return Row(key, value, "unknown", {}, f"not a key of {table.peer} that is known here")
    if nothing(value):
        return Row(key, value, "unneeded", {}, "not set")
    if entry.meaning == "unsupported" and value in OFF:
        return Row(key, value, "unneeded", {}, "off")
    target = target_of(entry, case.targets)
    if entry.meaning in ("unneeded", "unsupported") and not (entry.values or entry.rule):
        return Row(key, value, entry.meaning, {}, entry.note)
    if not target and entry.rule not in ("reward_path", "trackers", "wandb", "tensorboard"):
        meaning = "unneeded" if entry.values and entry.values.get(value, "") is None else "unsupported"
        return Row(key, value, meaning, {}, entry.note or f"no counterpart with algorithm '{case.algorithm}'")
    settings = _settings(case, entry, target, key, value)
    if isinstance(settings, str):
        return Row(key, value, "unsupported" if "no loss" in settings or ":" in settings else "unneeded", {}, settings)
    for ours, new in settings.items():
        if problem := case.targets.problem(ours, new):
            raise ConfigError(
                f"{key}: {value!r} cannot be used", why=f"{ours}: {problem}", fix="correct it in the file"
            )
    return Row(key, value, entry.meaning if settings else "unneeded", settings, entry.note)


def _settings(case: Case, entry: Entry, target: str, key: str, value: Any) -> Settings | str:
    """Our settings, or why there are none."""
    if entry.only_if == "positive" and case.number(key, default=0) <= 0:
        return "not set"
    if entry.only_if.startswith("not ") and str(value) == entry.only_if.removeprefix("not "):
        return "not set"
    if entry.rule:
        return getattr(rules, entry.rule)(case, target, key, value)
    if entry.values is None:
        return {target: value}
    if value not in entry.values:
        values = ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in entry.values)
        return f"{value!r}: only {values} have a counterpart"
    ours = entry.values[value]
    return {} if ours is None else {target: ours}


def _chooses(key: str, table: Table) -> bool:
    entry = table.find(key)
    names = entry is not None and any(target.endswith(".name") for target in entry.ours)
    return names or key.endswith(CHOOSERS) or (entry is not None and entry.rule == "reward_path")


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as mappings."""
    config: dict[str, Any] = {}
    for target, value in settings.items():
        for part in reversed(target.split(".")):
            value = {part: value}
        config = merge_settings(config, value)
    return config


def _fit_rollout_batch(config: dict[str, Any]) -> None:
    """Groups of another size than ours need a batch that they divide; eight prompts where nothing is said."""
    trainer = config["trainer"]
    if "group_size" in trainer and "rollout_batch_size" not in trainer:
        trainer["rollout_batch_size"] = 8 * int(trainer["group_size"])


def check(config: Mapping[str, Any], registry: Registry, chosen: Mapping[str, str]) -> None:
    names = Targets(registry, chosen).chosen
    base = {slot: {"name": name} for slot, name in names.items() if slot in RunConfig.model_fields}
    settings = merge_settings({"dataset": {"name": "pocket"}}, merge_settings(base, config))
    if isinstance(config.get("dataset"), Mapping) and "name" in config["dataset"]:
        settings["dataset"] = dict(config["dataset"])
    RunConfig.from_settings(settings, "the translated configuration", registry)
