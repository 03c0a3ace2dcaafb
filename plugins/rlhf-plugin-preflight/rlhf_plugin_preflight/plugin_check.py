"""Which installed components work, and which modules of their packages: `rlhf plugins check` and `rlhf doctor`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click

from rlhf_core.cli.groups import command_entries, command_problem
from rlhf_core.config import PluginError, Registry, RlhfError
from rlhf_core.config.hints import GROUP, USAGE_GROUP
from rlhf_core.plugins.component import import_component
from rlhf_core.plugins.entry_points import CORE, Entry, disabled_distributions, entries_of, normalise


class CheckRow(NamedTuple):
    """One thing that was checked."""

    distribution: str
    version: str
    kind: str
    """A kind of component, or ``module``."""
    name: str
    error: RlhfError | None


def check_components(registry: Registry, distribution: str = "") -> Iterator[CheckRow]:
    """Every component, and every broken module that belongs to none; ``distribution`` "" checks all."""
    entries_of: dict[str, list[Entry]] = {}
    for entry in registry.entries():
        if distribution in ("", entry.distribution):
            entries_of.setdefault(entry.distribution, []).append(entry)
    for name, entries in entries_of.items():
        reported: list[str] = []
        for entry in entries:
            error = component_problem(registry, entry)
            reported += [str(error)] if error else []
            yield CheckRow(name, entry.version, entry.kind, entry.qualified, error)
        for package in sorted({e.point.module.partition(".")[0] for e in entries}) if name != CORE else ():
            for module, cause in broken_modules(package, entries[0]):
                if not any(_text(cause) in text for text in reported):
                    what = f"importing {module}: {_text(cause)}"
                    yield CheckRow(name, entries[0].version, "module", module, _problem(entries[0], what, cause))


def check_commands(root: click.Command, distribution: str = "") -> Iterator[CheckRow]:
    """Every command that distributions add to ``root``; each is imported. ``distribution``: only this one."""
    for entry in command_entries():
        if distribution in ("", entry.distribution):
            error = command_problem(root, entry)
            yield CheckRow(entry.distribution, entry.version, "command", entry.qualified, error)


def check_hooks(distribution: str = "") -> Iterator[CheckRow]:
    """Every hook plugin; each is imported. ``distribution``: only this one; "" checks all."""
    from rlhf_core.plugins.hooks import hook_points, new_manager, register

    manager = new_manager()
    for entry in hook_points(disabled_distributions()):
        if distribution in ("", entry.distribution):
            error: RlhfError | None = None
            try:
                register(manager, entry)
            except RlhfError as problem:
                error = problem
            yield CheckRow(entry.distribution, entry.version, "hook", entry.qualified, error)


def check_hints(distribution: str = "") -> Iterator[CheckRow]:
    """Every function of hints that is not switched off; each is imported. ``distribution``: only this one."""
    switched_off = disabled_distributions()
    for entry in [*entries_of(GROUP, switched_off), *entries_of(USAGE_GROUP, switched_off)]:
        if distribution not in ("", entry.distribution):
            continue
        error: RlhfError | None = None
        try:
            if not callable(entry.point.load()):
                error = _problem(entry, f"{entry.value} is not a function", TypeError("not callable"))
        except Exception as cause:
            error = _problem(entry, f"the hints '{entry.name}' cannot be loaded: {_text(cause)}", cause)
        yield CheckRow(entry.distribution, entry.version, "hint", entry.qualified, error)


def claimed_twice(entries: Sequence[Entry]) -> list[tuple[str, str, list[str]]]:
    """Kind, name and qualified spellings of what several distributions claim."""
    spellings: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        spellings.setdefault((entry.kind, entry.name), []).append(entry.qualified)
    return [(kind, name, rows) for (kind, name), rows in spellings.items() if len(rows) > 1]


def component_problem(registry: Registry, entry: Entry) -> RlhfError | None:
    """Why a component cannot be used; None if its Config loads, and so does the class that it names."""
    try:
        cls = registry.load(entry.kind, entry.qualified)
        if cls.component and entry.distribution != CORE:
            import_component(cls)
    except RlhfError as error:
        return error
    return None


def broken_modules(package: str, entry: Entry) -> Iterator[tuple[str, Exception]]:
    """Modules of a package that do not import, and why, without ``__main__``, ``test*`` and ``conftest``."""
    if (error := _import(package, entry)) is not None:
        yield package, error
        return
    folders = getattr(importlib.import_module(package), "__path__", ())
    for module in pkgutil.iter_modules(folders, f"{package}."):
        if module.name.rpartition(".")[2].startswith(("__main__", "test", "conftest")):
            continue
        if module.ispkg:
            yield from broken_modules(module.name, entry)
        elif (error := _import(module.name, entry)) is not None:
            yield module.name, error


def _import(module: str, entry: Entry) -> Exception | None:
    """What importing a module raises; one that lacks only an extra of its distribution is in order."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        return None if normalise((error.name or "").partition(".")[0]) in _of_extras(entry) else error
    except Exception as error:
        return error
    return None


def _of_extras(entry: Entry) -> set[str]:
    """Distributions that an entry's distribution needs for its extras only."""
    from packaging.requirements import Requirement

    requirements = [Requirement(line) for line in (entry.point.dist.requires if entry.point.dist else None) or ()]
    return {normalise(r.name) for r in requirements if r.marker and "extra" in str(r.marker)}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _problem(entry: Entry, what: str, cause: Exception) -> PluginError:
    problem = PluginError(
        what,
        where=f"{entry.distribution} {entry.version}",
        fix=f"install what it needs; rlhf plugins check {entry.distribution} shows the traceback",
    )
    problem.__cause__ = cause
    return problem
