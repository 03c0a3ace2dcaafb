"""What blocks of the documentation call and import is in the environment that `make quickstart` makes, or a block of
the same page installs it.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from rlhf_core.plugins.entry_points import normalise
from scripts.dist import projects
from tests.docs.blocks import ALL, ROOT, Block, commands

SHELL = {"cd", "export", "echo", "source", "bash", "git", "make", "python", "pip"}
PLACES = {"my_", "acme", "rlhf_plugin_my"}
"""Packages that the reader writes."""


@functools.cache
def installed_by_quickstart() -> frozenset[str]:
    """Distributions that `make install` brings: ours, and what they require without an extra."""
    makefile = (ROOT / "Makefile").read_text()
    assert "$(INSTALL) -q --no-build-isolation $(addprefix -e ./,$(PROJECTS))" in makefile
    waiting = [normalise(p.name) if p != ROOT else "rlhf-core" for p in projects()]
    waiting = [("rlhf-eval" if name == "eval" else name, "") for name in waiting]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for row in map(Requirement, metadata.requires(name) or ()):
            if row.marker is None or row.marker.evaluate({"extra": extra}):
                waiting += [(normalise(row.name), wanted) for wanted in ("", *row.extras)]
    return frozenset(name for name, _ in seen)


def installed_by_page(page: str) -> set[str]:
    """Distributions that a command or a sentence of a page installs, with those that its extras ask for."""
    inline = re.findall(r"`pip install ([\w -]+)`", (ROOT / page).read_text())
    names = {normalise(name) for text in inline for name in text.split()}
    for words in (
        c.words for b in ALL if (b.page, b.language) == (page, "bash") for c in commands(b) if c.words[0] == "pip"
    ):
        for word in (word for word in words[2:] if not word.startswith("-")):
            name, _, extra = word.rstrip("]").partition("[")
            names.add(normalise(name))
            if name not in (".", "") and extra:
                lines = map(Requirement, metadata.requires(name) or ())
                names |= {normalise(r.name) for r in lines if r.marker and r.marker.evaluate({"extra": extra})}
    return names


def has(distributions: set[str] | frozenset[str], page: str) -> bool:
    return bool(distributions & (installed_by_quickstart() | installed_by_page(page)))


def test_what_make_quickstart_installs_is_known() -> None:
    assert {"rlhf-core", "rlhf-eval", "rlhf-plugin-grpo", "torch", "transformers", "pytest", "gguf"} <= (
        installed_by_quickstart()
    )
    assert not {"ruff", "pyright", "mkdocs", "trl", "selenium"} & installed_by_quickstart(), "only tests need them"


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "bash" and not b.reason], ids=str)
def test_programs_of_a_block_are_there(block: Block) -> None:
    brought = metadata.entry_points(group="console_scripts")
    for command in commands(block):
        program = command.words[0]
        if program == "python" and command.words[1:2] == ["-m"]:
            check_modules(block, {command.words[2].partition(".")[0]})
        elif program not in SHELL:
            owners = {normalise(e.dist.name) for e in brought if e.name == program and e.dist is not None} | {program}
            assert has(owners, block.page), f"{command}: nothing brings {program}"


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "python" and not b.reason], ids=str)
def test_modules_of_a_block_are_there(block: Block) -> None:
    nodes = list(ast.walk(ast.parse(block.text)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    check_modules(block, {name.partition(".")[0] for name in names})


def check_modules(block: Block, names: set[str]) -> None:
    owners = metadata.packages_distributions()
    for name in names - set(sys.stdlib_module_names) - {"scripts"}:
        shown = re.search(rf"\b{name}\.py\b|packages = \[\"{name}\"|\"{name}\.", "".join(b.text for b in ALL))
        if name.startswith(tuple(PLACES)) or (shown and name not in owners):
            continue
        assert has({normalise(owner) for owner in owners.get(name, (name,))}, block.page), f"{block}: import {name}"


def test_a_model_of_the_tutorial_can_be_a_gguf_file() -> None:
    """The plugin that reads it, and what that needs, come with the quickstart."""
    assert "a `.gguf` file" in (ROOT / "docs/tutorial.md").read_text()
    assert {"rlhf-plugin-gguf", "gguf", "sentencepiece"} <= installed_by_quickstart()
