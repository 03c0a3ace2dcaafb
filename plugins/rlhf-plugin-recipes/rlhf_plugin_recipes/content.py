"""What decides a stage's result, and whether an output is what was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlhf_core.cli import open_registry
from rlhf_core.models import weights_digest
from rlhf_plugin_recipes.files import flat
from rlhf_plugin_recipes.read import references
from rlhf_plugin_recipes.stage_plan import Made, StagePlan, names_of

PATH_KEYS = ("path", "model", "baseline", "input", "data", "dataset", "config", "policy", "reward_model")
"""Settings whose value may be a file in the working directory without looking like one."""


def key_parts(planned: StagePlan, made: Mapping[str, Made]) -> dict[str, Any]:
    """Everything that decides what the stage makes."""
    stage = planned.stage
    used = dict.fromkeys(r for _, r in references(stage.settings) if r.startswith("stages."))
    outputs = {reference: reference.split(".")[1:] for reference in used}
    inputs = {reference: made[name].digests[output] for reference, (name, output) in outputs.items()}
    symbols = {made[name].paths[output]: f"${{{reference}}}" for reference, (name, output) in outputs.items()}
    if planned.plan:
        return {**plan_parts(planned.plan, symbols), "inputs": inputs}
    settings = {"command": " ".join((*stage.kind.command, *stage.kind.asks)), **planned.settings}
    if stage.kind_name == "command":
        settings["outputs"] = dict(stage.kind.outputs)
    versions = {name: metadata.version(name) for name in _distributions(planned)}
    return {**_parts(settings, versions, symbols), "inputs": inputs}


def plan_parts(plan: Mapping[str, Any], symbols: Mapping[str, str]) -> dict[str, Any]:
    """Everything that decides a training run; ``symbols`` names the paths of earlier stages' outputs."""
    settings = {**plan["config"], "world_size": plan["world_size"]}
    return _parts(settings, {one["distribution"]: one["version"] for one in plan["components"]}, symbols)


def _parts(settings: Mapping[str, Any], versions: Mapping[str, str], symbols: Mapping[str, str]) -> dict[str, Any]:
    parts = {
        "settings": _with_symbols(settings, symbols),
        "files": dict(sorted(_local_files(settings, symbols))),
        "versions": {"rlhf-core": metadata.version("rlhf-core"), **dict(sorted(versions.items()))},
    }
    code = {name: digest for name in sorted({*versions} - {"rlhf-core"}) if (digest := _code_of_editable(name))}
    return {**parts, "code": code} if code else parts


def key_of(parts: Mapping[str, Any]) -> str:
    """Hash of the parts, 10 hex digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:10]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    old, new = flat(before), flat(now)
    rows: list[str] = []
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) == new.get(key):
            continue
        section, _, name = key.partition(".")
        if section == "settings":
            rows.append(f"{name}: {old.get(key)!r} -> {new.get(key)!r}")
        elif section == "versions":
            rows.append(f"{name} {old.get(key)} -> {new.get(key)}")
        else:
            rows.append(f"{name} has other content" if key in old and key in new else f"{name} is another input")
    return rows


def fingerprint(path: Path) -> dict[str, Any]:
    """Hash of a file's or folder's content, and the sizes and times by which it is known to be unchanged."""
    return {"digest": digest_of(str(path)), "stat": _stat(path)}


def is_changed(path: Path, recorded: Mapping[str, Any]) -> bool:
    """Whether the content differs from the fingerprint's; files of the same size and time are taken as unchanged."""
    return _stat(path) != recorded["stat"] and digest_of(str(path)) != recorded["digest"]


def digest_of(path: str) -> str:
    file = Path(path).expanduser()
    if file.suffix == ".md" and file.is_file():
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return weights_digest(path)


def _code_of_editable(distribution: str) -> str:
    """Hash of the Python files of a distribution that is installed editable; "" for any other."""
    installed = metadata.distribution(distribution)
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        return ""
    if not origin.get("dir_info", {}).get("editable"):
        return ""
    digest = hashlib.sha256()
    for package in sorted({point.value.partition(":")[0].partition(".")[0] for point in installed.entry_points}):
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or [] if spec is not None else []:
            for file in sorted(Path(folder).rglob("*.py")):
                digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _stat(path: Path) -> str:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    facts = [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _with_symbols(value: Any, symbols: Mapping[str, str]) -> Any:
    """Paths of earlier stages' outputs by their names, so that no folder's place is part of the key."""
    if isinstance(value, Mapping):
        return {key: _with_symbols(one, symbols) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_symbols(one, symbols) for one in value]
    if isinstance(value, str):
        for path in sorted(symbols, key=len, reverse=True):
            value = value.replace(path, symbols[path])
    return value


def _local_files(value: Any, symbols: Mapping[str, str], key: str = "") -> Iterator[tuple[str, str]]:
    """(Path, hash) of every file and folder among the settings that no stage made."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _local_files(one, symbols, key if key in PATH_KEYS and name not in PATH_KEYS else str(name))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _local_files(one, symbols, key)
    elif isinstance(value, str) and value and value not in symbols:
        try:
            looks = key in PATH_KEYS or "/" in value or Path(value).is_file()
            if looks and (digest := digest_of(value)):
                yield value, digest
        except (OSError, ValueError):  # a text too long for a path, or with a NUL
            return


def _distributions(planned: StagePlan) -> Iterator[str]:
    """Distributions whose code makes the stage: the command's and those of the components it names."""
    stage = planned.stage
    path = ".".join(stage.kind.command)
    for point in metadata.entry_points(group="rlhf.command"):
        if point.dist is not None and (path == point.name or path.startswith(f"{point.name}.")):
            yield point.dist.name
    registry = open_registry()
    named = [
        (kind, name) for key, (kind, _) in stage.kind.components.items() for name in names_of(planned.settings.get(key))
    ]
    if "reward" in stage.kind.components and {"model", "reward_model"} & set(planned.settings):
        named += [("reward", "bradley_terry"), ("reward", "ensemble")]
    for kind, name in named:
        yield from (e.distribution for e in registry.entries(kind) if name.partition(":")[0] in (e.name, e.qualified))
