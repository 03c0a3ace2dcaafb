"""From another library's settings to ours: each key with its counterpart, and one configuration that validates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlhf_core.config import ConfigError, Registry, RunConfig, UserError, merge_settings
from rlhf_plugin_migrate import rules
from rlhf_plugin_migrate.case import UNFILLED, Case, Lost, Settings
from rlhf_plugin_migrate.hints import target_of
from rlhf_plugin_migrate.read import PeerConfig, nothing
from rlhf_plugin_migrate.tables import Entry, Table
from rlhf_plugin_migrate.targets import Targets, dataset_component

CHOOSERS = (".name", "dataset_name", "loss_type", "loss_mode", "scale_rewards", "normalize_advantages")
OFF = (False, -1, "no", "none")
DECIDED = ("learning_rate", "max_steps", "per_device_train_batch_size", "seed")
"""Keys of which one is left open for settings that cannot be read."""
PLACES = {"reward_path": "reward.name"}
"""Rule -> where the user has to choose, if the run has no counterpart of its key."""
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
    """Nested, as a file holds it; ``???`` where the user has to choose."""
    processes: int
    problems: list[str]
    """What does not validate, each with what to change."""


def convert(
    peer_config: PeerConfig, table: Table, registry: Registry, algorithm: str, processes: int | None = None
) -> Converted:
    """Translate every key, in an order in which components are chosen before their settings."""
    number = processes or processes_of(peer_config, table)
    chosen = {"trainer": algorithm}
    rows: dict[str, Row] = {}
    problems: list[str] = []
    for key in sorted({**peer_config.settings, **peer_config.unread}, key=lambda key: not _chooses(key, table)):
        case = Case(peer_config.settings, algorithm, Targets(registry, chosen), number)
        try:
            unread = key not in peer_config.settings
            row = unread_row(case, table, key, peer_config.unread[key]) if unread else convert_key(case, table, key)
        except ConfigError as error:
            problems.append(str(error))
            row = _left_open(case, table, key, peer_config.settings[key], error.what)
        rows[key] = row
        for target, value in row.settings.items():
            slot = target.removesuffix(".name")
            if target.endswith(".name") and slot in SLOTS and value != UNFILLED:
                chosen[slot] = dataset_component(str(value)) if slot == "dataset" else str(value)
    ordered = [rows[key] for key in (*peer_config.settings, *peer_config.unread)]
    settings: Settings = {"trainer.name": algorithm}
    for target, value in ((t, v) for row in ordered for t, v in row.settings.items()):
        settings[target] = UNFILLED if settings.get(target) == UNFILLED else value
    for target in ("model.path", "dataset.name", "reward.name"):
        if target != "reward.name" or Targets(registry, chosen).exists("trainer.rollout_batch_size"):
            settings.setdefault(target, UNFILLED)
    if isinstance(group := settings.get("trainer.group_size"), int):  # eight prompts where nothing is said
        settings.setdefault("trainer.rollout_batch_size", 8 * group)
    config = nested(settings)
    problems += check(config, registry, chosen, number)
    return Converted(algorithm, ordered, config, number, list(dict.fromkeys(problems)))


def processes_of(peer_config: PeerConfig, table: Table) -> int:
    """How many processes the configuration is for, as far as it says it."""
    numbers = [
        next((peer_config.settings[key] for key in keys if key in peer_config.settings), 1) for keys in table.processes
    ]
    return math.prod(number for number in numbers if isinstance(number, int) and number > 0)


def convert_key(case: Case, table: Table, key: str) -> Row:
    entry, value = table.by_key.get(key), case.settings[key]
    if entry is None:
        return Row(key, value, "unknown", {}, f"not a key of {table.peer} that is known here")
    if nothing(value):
        return Row(key, value, "unneeded", {}, "not set")
    if entry.meaning == "unsupported" and value in OFF:
        return Row(key, value, "unneeded", {}, "off")
    target = target_of(entry, case.targets)
    if entry.meaning in ("unneeded", "unsupported") and not (entry.values or entry.rule):
        return Row(key, value, entry.meaning, {}, entry.note)
    if not target and entry.rule not in (*PLACES, "tokenizer", "trackers"):
        meaning = "unneeded" if entry.values and _value(entry, value) is None else "unsupported"
        return Row(key, value, meaning, {}, entry.note or f"no counterpart with algorithm '{case.algorithm}'")
    settings = _settings(case, entry, target, key, value)
    if isinstance(settings, Lost):
        return _left_open(case, table, key, value, settings or entry.note)
    if isinstance(settings, str):
        return Row(key, value, "unneeded", {}, settings)
    for ours, new in settings.items():
        if problem := case.targets.problem(ours, new):
            raise ConfigError(
                f"{key}: {value!r} cannot be used", why=f"{ours}: {problem}", fix="correct it in the file"
            )
    return Row(key, value, entry.meaning if settings else "unneeded", settings, entry.note)


def unread_row(case: Case, table: Table, key: str, text: str) -> Row:
    """A value, or settings of any names (``args``, ``**settings``), that only running the program gives."""
    entry = table.by_key.get(key)
    if entry is not None and entry.meaning in ("unneeded", "unsupported") and not entry.rule:
        return Row(key, text, entry.meaning, {}, entry.note)
    what = "settings" if key == "args" or key.startswith("**") else "a value"
    return _left_open(case, table, key, text, f"{what} that only running the script gives")


def _left_open(case: Case, table: Table, key: str, value: Any, note: str) -> Row:
    """A key whose value has no counterpart: the user has to choose where it has a place here."""
    several = key == "args" or key.startswith("**")
    named = next((name for name in DECIDED if name not in case.settings), key) if several else key
    entry = table.by_key.get(named)
    target = "" if entry is None else target_of(entry, case.targets) or PLACES.get(entry.rule, "")
    return Row(key, value, "unknown", {target: UNFILLED} if target else {}, note)


def _settings(case: Case, entry: Entry, target: str, key: str, value: Any) -> Settings | str:
    """Our settings, or why there are none."""
    if entry.only_if == "positive" and case.number(key, default=0) <= 0:
        return "not set"
    if entry.only_if.startswith("not ") and str(value) == entry.only_if.removeprefix("not "):
        return "not set"
    if entry.needs and not case.get(*entry.needs):
        return f"{entry.needs[0]} is off"
    if case.get(*entry.unless):
        return f"{entry.unless[0]} is on"
    if entry.rule:
        return getattr(rules, entry.rule)(case, target, key, value)
    if entry.values is None:
        return {target: value}
    ours = _value(entry, value)
    return {} if ours is None else ours if isinstance(ours, dict | Lost) else {target: ours}


def _value(entry: Entry, value: Any) -> Any:
    """What the table has for a value, which may be the only one of a list."""
    (single,) = value if isinstance(value, list) and len(value) == 1 else (value,)
    values = entry.values or {}
    if not isinstance(single, list | dict) and single in values:
        return values[single]
    known = ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)
    return Lost(entry.note or f"only {known} have a counterpart")


def _chooses(key: str, table: Table) -> bool:
    entry = table.by_key.get(key)
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


def check(config: Mapping[str, Any], registry: Registry, chosen: Mapping[str, str], processes: int) -> list[str]:
    """What does not validate once every ``???`` has a value."""
    names = Targets(registry, chosen).chosen
    base = {slot: {"name": name} for slot, name in names.items() if slot in RunConfig.model_fields}
    filled = _filled(config)
    settings = merge_settings(base, filled)
    settings["dataset"] = filled["dataset"] if "name" in filled.get("dataset", {}) else {"name": "pocket"}
    try:
        RunConfig.from_settings(settings, "the translated configuration", registry)
    except UserError as error:
        trainer = {"rollout_batch_size": 0, "group_size": 1, **filled["trainer"]}
        least = trainer["group_size"] // math.gcd(trainer["group_size"], trainer["rollout_batch_size"])
        return [f"{error}" + (f"\n  fix: --nproc {least * processes}, if the file is for so many" if least > 1 else "")]
    return []


def _filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without the values that are left to the user."""
    return {k: _filled(v) if isinstance(v, Mapping) else v for k, v in config.items() if v != UNFILLED}
