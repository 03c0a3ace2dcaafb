"""Adds a component to a package that is there already: `rlhf plugins new NAME --kind loss --into DIR`."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement

from rlhf_core.config import UserError
from rlhf_testing.scaffold.toml_edit import add_item, add_key, get
from rlhf_testing.scaffold.write import Names, check_kind, names_for, needs, render

PLACES = (("project", "entry-points"), ("tool", "poetry", "plugins"), ("tool", "flit", "entrypoints"))
"""Where build tools keep entry points: the standard first, then those of poetry and flit before it."""
NO_PACKAGES = frozenset({"tests", "test", "docs", "doc", "examples", "scripts", "build", "dist", "benchmarks"})


class Added(NamedTuple):
    files: list[Path]
    test: Path
    notes: list[str]
    """What is left to do by hand."""


def write_into(name: str, kind: str, folder: Path) -> Added:
    """Add a subpackage with one component of ``kind``, its entry point and its test to the package in ``folder``."""
    check_kind(kind)
    folder = folder.expanduser()
    file = folder / "pyproject.toml"
    if not file.is_file():
        why = "entry points in setup.cfg or setup.py are not changed" if (folder / "setup.py").exists() else ""
        raise UserError(f"'{folder}' has no pyproject.toml", why=why, fix="make one, or leave --into out")
    text = file.read_bytes().decode("utf-8")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"'{file}' cannot be read", why=str(error), fix="correct it first") from error
    package = find_package(folder, data)
    plain = names_for(name)
    module = f"{package.name}.{plain.component}"
    names = Names(str(project_name(data) or package.name), module, plain.component, plain.stem)
    modules, tests, entry_points = render(names, kind)
    target = package / plain.component
    test_folder = next((folder / t for t in ("tests", "test") if (folder / t).is_dir()), folder / "tests")
    test = test_folder / f"test_{plain.component}.py"
    for taken in (target, test):
        if taken.exists():
            raise UserError(f"'{taken}' exists already", why="nothing is overwritten", fix="choose another name")
    changed, notes = add_everything(text, data, file, entry_points, module, kind)
    write(target, modules, test, tests, file, changed)
    return Added([*(target / name for name in modules), file], test, notes)


def write(target: Path, modules: Mapping[str, str], test: Path, tests: str, file: Path, changed: str) -> None:
    """Write everything, the pyproject.toml last; what is written is taken back if something fails."""
    made_tests = not test.parent.exists()
    try:
        target.mkdir()
        for name, content in modules.items():
            (target / name).write_text(content, encoding="utf-8")
        test.parent.mkdir(exist_ok=True)
        test.write_text(tests, encoding="utf-8")
        aside = file.with_name(file.name + ".new")
        aside.write_bytes(changed.encode("utf-8"))
        shutil.copymode(file, aside)
        aside.replace(file)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        test.unlink(missing_ok=True)
        if made_tests and test.parent.exists():
            test.parent.rmdir()
        raise UserError(f"'{target}' cannot be written", why=str(error), fix="check its permissions") from error


def add_everything(
    text: str, data: Mapping[str, Any], file: Path, entry_points: str, module: str, kind: str
) -> tuple[str, list[str]]:
    """The changed pyproject.toml, and what is left to do by hand."""
    groups: Mapping[str, Mapping[str, str]] = tomllib.loads(entry_points)["project"]["entry-points"]
    table = next((p for p in PLACES if get(data, p[:-1]) is not None), None)
    if table is None or "entry-points" in (get(data, ("project", "dynamic")) or ()):
        why = "it has no [project] table" if table is None else "entry-points are dynamic: another file lists them"
        raise UserError(f"entry points cannot be added to '{file}'", why=why, fix=f"add there:\n{entry_points}")
    for group, rows in groups.items():
        for name, value in rows.items():
            if name in (get(data, (*table, group)) or {}):
                raise UserError(f"'{file}' has a {group} '{name}' already", fix="choose another name")
            added = add_key(text, (*table, group), name, value)
            if added is None:
                why = "its entry points are written in one line"
                raise UserError(f"entry points cannot be added to '{file}'", why=why, fix=f"add there:\n{entry_points}")
            text = added
    notes: list[str] = []
    listed = get(data, ("tool", "setuptools", "packages"))
    if isinstance(listed, list) and module.partition(".")[0] in listed:
        added = add_item(text, ("tool", "setuptools"), "packages", module)
        notes += [] if added else [f'add "{module}" to tool.setuptools.packages']
        text = added or text
    for requirement in needs(kind):
        added = add_requirement(text, requirement)
        notes += [] if added else [f'add "{requirement}" to the dependencies']
        text = added or text
    return text, notes


def add_requirement(text: str, requirement: str) -> str | None:
    """The text with a requirement, unless it has it; None if it cannot be added."""
    data, wanted = tomllib.loads(text), Requirement(requirement)
    if (old := get(data, ("tool", "poetry", "dependencies"))) is not None and "project" not in data:
        if wanted.name in old:
            return text
        return add_key(text, ("tool", "poetry", "dependencies"), wanted.name, str(wanted.specifier) or "*")
    if wanted.name in map(_name, get(data, ("project", "dependencies")) or ()):
        return text
    return add_item(text, ("project",), "dependencies", requirement)


def _name(requirement: str) -> str:
    try:
        return re.sub(r"[-_.]+", "-", Requirement(requirement).name).lower()
    except InvalidRequirement:
        return ""


def project_name(data: Mapping[str, Any]) -> Any:
    return get(data, ("project", "name")) or get(data, ("tool", "poetry", "name"))


def find_package(folder: Path, data: Mapping[str, Any]) -> Path:
    """The folder of the package, in ``src`` or on top; that named like the distribution if there are several."""
    wanted = re.sub(r"[-.]+", "_", str(project_name(data) or "")).lower()
    roots = [r for r in (folder / "src", folder) if r.is_dir()]
    folders = [d for r in roots for d in sorted(r.iterdir()) if d.is_dir() and d.name.isidentifier()]
    named = [d for d in folders if d.name.lower() == wanted and any(d.glob("*.py"))]
    packages = named[:1] or [d for d in folders if (d / "__init__.py").is_file() and d.name not in NO_PACKAGES]
    if len(packages) == 1:
        return packages[0]
    names = ", ".join(d.name for d in packages)
    raise UserError(
        f"'{folder}' has {'several packages' if packages else 'no package'}",
        why=f"there are {names}" if packages else "no folder with an __init__.py, in src or on top",
        fix=f"name the distribution like one of them, or make {wanted or 'a_package'}/__init__.py",
    )
