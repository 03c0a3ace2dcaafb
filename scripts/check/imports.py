"""Imports go one way: plugins -> the core's public modules; a plugin imports another only if its metadata says so.

Tests of a plugin may import what they like; what is shipped may not.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rlhf_core._surface import public_names
from rlhf_core._version import __version__
from scripts.check.files import is_test, parse, python_files

TOPICS = tuple(
    f"rlhf_core.{topic}"
    for topic in (
        *("config", "hooks", "losses", "rewards", "rollouts", "rl", "training"),
        *("data", "models", "distributed", "runs", "cli"),
    )
)
"""Modules of the core that another distribution may import; not what lies below them."""
INSIDE: Mapping[str, int] = {
    "rlhf-plugin-algorithms": 4,
    "rlhf-plugin-fsdp": 7,
    "rlhf-plugin-hub": 3,
    "rlhf-plugin-native": 31,
    "rlhf-plugin-episodes": 16,
    "rlhf-plugin-launchers": 13,
    "rlhf-plugin-preflight": 65,
    "rlhf-plugin-reward": 11,
    "rlhf-plugin-schedule": 52,
    "rlhf-plugin-verifiers": 7,
    "rlhf-plugin-vllm": 7,
    "rlhf-study": 3,
    "rlhf-testing": 29,
}
"""Distributions released with the core (ADR 0025) -> their imports from inside it. A number may only fall, unless a
public name that no other distribution uses became private, or a part of the core moved there (ADR 0026, 0027); one that
runs the core's own step (ADR 0030)."""
OUTSIDE = ("plugins", "eval", "extensions")
"""Folders whose files are held to this even where no distribution has them."""


@dataclass(frozen=True)
class Project:
    """One distribution of the repository besides the core."""

    folder: Path
    name: str
    depends_on: frozenset[str]
    """Distributions that its metadata names, extras included."""
    requires: tuple[str, ...] = ()
    """Its dependencies as they are written."""

    @property
    def module(self) -> str:
        """Import name. Example: ``rlhf_plugin_grpo``"""
        return self.name.replace("-", "_")


def check(root: Path) -> list[str]:
    projects = find_projects(root)
    ours = {p.module: p for p in projects}
    problems: list[str] = []
    inside: Counter[str] = Counter()
    for file in python_files(root):
        if is_test(file.relative_to(root)):
            continue
        where = file.relative_to(root)
        owner = next((p for p in projects if p.folder in file.parents), None)
        problems += [f"{where}:{line}: there is no public {name}" for line, name in missing(root, parse(file))]
        for line, module in imported(parse(file)):
            if where.parts[0] == "rlhf_core":
                wrong = core_wrong(module, ours)
            elif owner and owner.name in INSIDE and is_inside(module):
                inside[owner.name] += 1
                continue
            elif owner or where.parts[0] in OUTSIDE:
                wrong = plugin_wrong(module, owner or Project(root, where.parts[0], frozenset()), ours)
            else:
                wrong = ""
            if wrong:
                problems.append(f"{where}:{line}: imports {module}{wrong}")
    return (
        problems
        + [
            f"{name} has {count} imports from inside the core, the recorded number is {INSIDE[name]}"
            for name, count in inside.items()
            if count != INSIDE[name]
        ]
        + [
            f"{project.name} does not require rlhf-core=={__version__}, though it imports from inside it"
            for project in projects
            if project.name in INSIDE and f"rlhf-core=={__version__}" not in project.requires
        ]
    )


def missing(root: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of what is imported from a topic that has no such name, which a type checker takes for anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in TOPICS:
            folder, known = root.joinpath(*node.module.split(".")), public_names(import_module(node.module).__name__)
            for alias in node.names:
                if alias.name not in known and not (folder / f"{alias.name}.py").is_file():
                    yield node.lineno, f"{node.module}.{alias.name}"


def core_wrong(module: str, ours: Mapping[str, Project]) -> str:
    """What is wrong with this import in the core; "" if nothing is."""
    top = module.split(".")[0]
    wrong = top in ours or top.startswith("rlhf_plugin_")
    return "; the core imports no plugin, it looks components up in the registry" if wrong else ""


def plugin_wrong(module: str, owner: Project, ours: Mapping[str, Project]) -> str:
    """What is wrong with this import in a plugin; "" if nothing is."""
    top = module.split(".")[0]
    if is_inside(module):
        return f"; a plugin uses {', '.join(TOPICS)}"
    if top in ours and top != owner.module and ours[top].name not in owner.depends_on:
        return f", but {owner.name} does not depend on {ours[top].name}"
    return ""


def is_inside(module: str) -> bool:
    """Whether ``module`` is one of the core that is not promised."""
    return module.split(".")[0] == "rlhf_core" and module not in TOPICS


def find_projects(root: Path) -> list[Project]:
    """Read the metadata of every distribution under the repository but the core's."""
    projects: list[Project] = []
    for file in sorted(root.glob("*/pyproject.toml")) + sorted(root.glob("*/*/pyproject.toml")):
        project = tomllib.loads(file.read_text()).get("project", {})
        if "name" not in project:
            continue
        rows = list(project.get("dependencies", []))
        rows += [row for extra in project.get("optional-dependencies", {}).values() for row in extra]
        names = frozenset(re.split(r"[\s\[<>=!~;]", row, maxsplit=1)[0].lower().replace("_", "-") for row in rows)
        projects.append(Project(file.parent, project["name"], names, tuple(project.get("dependencies", ()))))
    return projects


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module) of every import, wherever it stands; ``from a import b`` may mean ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "rlhf_core":
                yield from ((node.lineno, f"rlhf_core.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module
