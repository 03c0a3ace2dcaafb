"""Which installed components work, and which modules of their packages: `rlhf plugins check` and `rlhf doctor`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import click

from rlhf_core.cli.groups import command_entries, command_problem
from rlhf_core.config import PluginError, Registry, RlhfError
from rlhf_core.plugins.component import import_component
from rlhf_core.plugins.entry_points import (
    CORE,
    Entry,
    check_core_range,
    disabled_distributions,
    entries_of,
    load_entry,
    normalise,
    scan,
)


class CheckRow(NamedTuple):
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
    for_another_core = {e.point.module.partition(".")[0] for e in registry.entries() if not _fits(e)}
    for name, entries in entries_of.items():
        reported: list[str] = []
        for entry in entries:
            error = component_problem(registry, entry)
            reported += [str(error)] if error else []
            yield CheckRow(name, entry.version, entry.kind, entry.qualified, error)
        packages = {e.point.module.partition(".")[0] for e in entries} - for_another_core
        for package in sorted(packages) if name != CORE else ():
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
    from rlhf_core.plugins.hooks import HookManager, hook_points, register

    manager = HookManager()
    for entry in hook_points(disabled_distributions()):
        if distribution in ("", entry.distribution):
            error: RlhfError | None = None
            try:
                register(manager, entry)
            except RlhfError as problem:
                error = problem
            yield CheckRow(entry.distribution, entry.version, "hook", entry.qualified, error)


def check_others(distribution: str = "") -> Iterator[CheckRow]:
    """Every entry point of other groups (hints, models, modalities, tool formats) that is not switched off; each is
    imported. ``distribution``: only this one.
    """
    switched_off = disabled_distributions()
    known = {"rlhf", "rlhf.command", *(e.point.group for e in Registry(disabled=()).entries())}
    groups = sorted({e.point.group for e in scan() if e.point.group.startswith("rlhf.")} - known)
    for entry in [entry for group in groups for entry in entries_of(group, switched_off)]:
        if distribution not in ("", entry.distribution):
            continue
        error: RlhfError | None = None
        try:
            fix = f"rlhf plugins check {entry.distribution} shows the traceback"
            if not callable(load_entry(entry, f"the {entry.kind} '{entry.name}'", fix)):
                error = _problem(entry, f"{entry.value} is not a function", TypeError("not callable"))
        except RlhfError as problem:
            error = problem
        yield CheckRow(entry.distribution, entry.version, entry.kind, entry.qualified, error)


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


def broken_modules(package: str, entry: Entry) -> Iterator[tuple[str, BaseException]]:
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


def _import(module: str, entry: Entry) -> BaseException | None:
    """What importing a module raises; one that lacks only an extra of its distribution is in order."""
    try:
        load_entry(entry, module, "", partial(importlib.import_module, module))
    except PluginError as problem:
        cause = problem.__cause__ or problem
        lacks = (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""
        return None if lacks and normalise(lacks) in _of_extras(entry) else cause
    return None


def _fits(entry: Entry) -> bool:
    """Whether an entry's distribution is for this core."""
    try:
        check_core_range(entry)
    except PluginError:
        return False
    return True


def _of_extras(entry: Entry) -> set[str]:
    """Distributions that an entry's distribution needs for its extras only."""
    from packaging.requirements import Requirement

    requirements = [Requirement(line) for line in (entry.point.dist.requires if entry.point.dist else None) or ()]
    return {normalise(r.name) for r in requirements if r.marker and "extra" in str(r.marker)}


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _problem(entry: Entry, what: str, cause: BaseException) -> PluginError:
    problem = PluginError(
        what,
        where=f"{entry.distribution} {entry.version}",
        fix=f"install what it needs; rlhf plugins check {entry.distribution} shows the traceback",
    )
    problem.__cause__ = cause
    return problem
