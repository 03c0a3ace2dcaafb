"""Which installed components work, and which modules of their packages: `rlhf plugins check` and `rlhf doctor`."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator, Sequence
from importlib.util import find_spec, resolve_name
from typing import Any, NamedTuple

from rlhf_core.plugins.component import import_component
from rlhf_core.plugins.disabled import normalise
from rlhf_core.plugins.entry_points import CORE, Entry, entries_of
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.errors import PluginError, RlhfError


class CheckRow(NamedTuple):
    """One thing that was checked.

    Example:
        CheckRow("rlhf-plugin-grpo", "0.1.0", "loss", "rlhf-plugin-grpo/grpo_clip", None)
    """

    distribution: str
    version: str
    kind: str
    """A kind of component, or ``module``."""
    name: str
    error: RlhfError | None


def check_components(registry: Registry, distribution: str = "") -> Iterator[CheckRow]:
    """Every component, and every broken module that belongs to none.

    A broken module is reported with the components that import it, when their Config is loaded or when it builds; the
    others of the distribution are in order.

    Args:
        registry: what is installed.
        distribution: only this one; "" checks all.
    """
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


def check_hooks(distribution: str = "") -> Iterator[CheckRow]:
    """Every hook plugin; each is imported. ``distribution``: only this one; "" checks all."""
    from rlhf_core.plugins.disabled import disabled_distributions
    from rlhf_core.plugins.hooks import hook_points, new_manager, register

    manager = new_manager()
    for dist, point in hook_points(disabled_distributions()):
        if distribution in ("", normalise(dist)):
            error: RlhfError | None = None
            try:
                register(manager, dist, point)
            except RlhfError as problem:
                error = problem
            yield CheckRow(
                normalise(dist), point.dist.version if point.dist else "", "hook", f"{dist}/{point.name}", error
            )


def check_hints(distribution: str = "") -> Iterator[CheckRow]:
    """Every function of key hints that is not switched off; each is imported. ``distribution``: only this one."""
    from rlhf_core.config.hints import GROUP
    from rlhf_core.plugins.disabled import disabled_distributions

    for entry in entries_of(GROUP, "hint"):
        if entry.distribution in disabled_distributions() or distribution not in ("", entry.distribution):
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
    """Why a component cannot be used; None if its Config loads, and so does what that imports to build it."""
    try:
        cls = registry.load(entry.kind, entry.qualified)
        if cls.component and entry.distribution != CORE:
            import_component(cls)
    except RlhfError as error:
        return error
    for module in late_imports(cls):
        if (cause := _import(module, entry)) is not None:
            what = f"{entry.kind} '{entry.name}' cannot be built: importing {module}: {_text(cause)}"
            return _problem(entry, what, cause)
    return None


def late_imports(cls: type) -> list[str]:
    """Modules of its own package that a Config's methods import when they are called."""
    names: dict[str, None] = {}
    package = cls.__module__.partition(".")[0]
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != package:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        for node in ast.walk(tree):
            names |= dict.fromkeys(_imported(node, base.__module__))
    return [name for name in names if name.partition(".")[0] == package]


def _imported(node: Any, module: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    name = (
        resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0]) if node.level else node.module
    )
    inner = [f"{name}.{alias.name}" for alias in node.names]
    return [str(name), *(i for i in inner if _is_module(i))]


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except Exception:
        return False


def broken_modules(package: str, entry: Entry) -> Iterator[tuple[str, Exception]]:
    """Modules of a package that do not import, and why; those called ``__main__``, ``test*`` or ``conftest`` are left
    out."""
    if (error := _import(package, entry)) is not None:
        yield package, error
        return
    folders = getattr(importlib.import_module(package), "__path__", ())
    for place in pkgutil.iter_modules(folders, f"{package}."):
        if place.name.rpartition(".")[2].startswith(("__main__", "test", "conftest")):
            continue
        if place.ispkg:
            yield from broken_modules(place.name, entry)
        elif (error := _import(place.name, entry)) is not None:
            yield place.name, error


def _import(module: str, entry: Entry) -> Exception | None:
    """What importing a module raises. One that lacks only what an extra of its distribution installs is in order: who
    does not use it need not have it."""
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
