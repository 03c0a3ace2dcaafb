"""Imports go one way: plugins -> the core's public modules; a plugin imports another only if its metadata says so.

Tests of a plugin may import what they like; what is shipped may not.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.check.files import is_test, parse, python_files

PUBLIC = ("rlhf_core.api", "rlhf_core.testing", "rlhf_core.functional")
"""Modules of the core that another distribution may import, with everything below them."""

WORKBENCH = (
    "rlhf_core.cli.common",
    "rlhf_core.cli.options",
    "rlhf_core.cli.reward",
    "rlhf_core.cli.toolbox",
    "rlhf_core.config.data",
    "rlhf_core.config.errors",
    "rlhf_core.config.load",
    "rlhf_core.config.run",
    "rlhf_core.verifiers.numeric",
    "rlhf_core.verifiers.worker_handle",
    "rlhf_core.data.files",
    "rlhf_core.data.datasets",
    "rlhf_core.data.mixture",
    "rlhf_core.data.schema",
    "rlhf_core.hooks",
    "rlhf_core.models.load",
    "rlhf_core.models.prompt_format",
    "rlhf_core.models.reference",
    "rlhf_core.models.save",
    "rlhf_core.models.sources",
    "rlhf_core.pocket.gold",
    "rlhf_core.policy.forward",
    "rlhf_core.kernels.last_token",
    "rlhf_core.policy.forward_options",
    "rlhf_core.policy.structure",
    "rlhf_core.protocols",
    "rlhf_core.registry",
    "rlhf_core.rollout.native",
    "rlhf_core.runs.atomic",
    "rlhf_core.runs.cache",
    "rlhf_core.runs.checkpoint",
    "rlhf_core.runs.jsonl",
    "rlhf_core.runs.read",
    "rlhf_core.runs.run_dir",
    "rlhf_core.strategy.local",
    "rlhf_core.contracts",
    "rlhf_core.trainers.common.policy_evaluator",
    "rlhf_core.trainers.common.policy_module",
    "rlhf_core.trainers.online.build",
    "rlhf_core.trainers.common.training_sample",
    "rlhf_core.trainers.offline.trainer",
    "rlhf_core.trainers.online.penalties",
    "rlhf_core.trainers.online.preflight",
    "rlhf_core.trainers.online.collector",
    "rlhf_core.trainers.online.report",
    "rlhf_core.rollout.seeds",
    "rlhf_core.runs.timer",
    "rlhf_core.trainers.common.learner",
)
"""Not promised: what this repository's own plugins build trainers and reward models with (ADR 0007). Keep it short."""


@dataclass(frozen=True)
class Project:
    """One distribution of the repository besides the core."""

    folder: Path
    name: str
    depends_on: frozenset[str]
    """Distributions that its metadata names, extras included."""

    @property
    def module(self) -> str:
        """Import name. Example: ``rlhf_plugin_grpo``"""
        return self.name.replace("-", "_")


def check(root: Path) -> list[str]:
    """Return every import that goes the wrong way."""
    projects = find_projects(root)
    ours = {p.module: p for p in projects}
    problems: list[str] = []
    for file in python_files(root):
        if is_test(file.relative_to(root)):
            continue
        where = file.relative_to(root)
        owner = next((p for p in projects if p.folder in file.parents), None)
        for line, module in imported(parse(file)):
            if where.parts[0] == "rlhf_core":
                wrong = core_wrong(module, ours)
            else:
                wrong = plugin_wrong(module, owner, ours) if owner else ""
            if wrong:
                problems.append(f"{where}:{line}: imports {module}{wrong}")
    return problems


def core_wrong(module: str, ours: Mapping[str, Project]) -> str:
    """What is wrong with this import in the core; "" if nothing is."""
    top = module.split(".")[0]
    wrong = top in ours or top.startswith("rlhf_plugin_")
    return "; the core imports no plugin, it looks components up in the registry" if wrong else ""


def plugin_wrong(module: str, owner: Project, ours: Mapping[str, Project]) -> str:
    """What is wrong with this import in a plugin; "" if nothing is."""
    top = module.split(".")[0]
    if top == "rlhf_core" and not is_public(module):
        return f"; a plugin uses {' or '.join(PUBLIC)}"
    if top in ours and top != owner.module and ours[top].name not in owner.depends_on:
        return f", but {owner.name} does not depend on {ours[top].name}"
    return ""


def is_public(module: str) -> bool:
    """Whether ``module`` is one of :data:`PUBLIC` or inside one, or of the workbench."""
    return module in WORKBENCH or any(module == p or module.startswith(p + ".") for p in PUBLIC)


def find_projects(root: Path) -> list[Project]:
    """Read the metadata of every distribution under the repository but the core's."""
    found: list[Project] = []
    for file in sorted(root.glob("*/pyproject.toml")) + sorted(root.glob("*/*/pyproject.toml")):
        project = tomllib.loads(file.read_text()).get("project", {})
        if "name" not in project:
            continue
        rows = list(project.get("dependencies", []))
        rows += [row for extra in project.get("optional-dependencies", {}).values() for row in extra]
        names = frozenset(re.split(r"[\s\[<>=!~;]", row, maxsplit=1)[0].lower().replace("_", "-") for row in rows)
        found.append(Project(file.parent, project["name"], names))
    return found


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
