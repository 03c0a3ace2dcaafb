"""What a plugin's command does, read from its source: help lists commands of plugins without importing one."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from pathlib import Path

import click

LENGTH = 110
"""Characters of a sentence of help."""


def description(value: str) -> str:
    """First sentence of a command's help.

    Args:
        value: what the entry point names. Example: ``"rlhf_plugin_datagen.filtering:filter_pairs"``.

    Returns:
        ``short_help`` or ``help`` of its decorator, else of its docstring; "" where the source does not say.
    """
    module, _, name = value.partition(":")
    try:
        tree = ast.parse(source_of(module).read_text(encoding="utf-8"))
    except (OSError, ImportError, ValueError, SyntaxError):  # a call of the command says what is wrong
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            texts = options(node.decorator_list)
            text = texts.get("short_help") or texts.get("help") or ast.get_docstring(node) or ""
            return click.Command(name, help=text).get_short_help_str(LENGTH)
    return ""


def options(decorators: Iterable[ast.expr]) -> dict[str, str]:
    """What is given as text to ``@click.command(...)`` or ``@click.group(...)``."""
    calls = [d for d in decorators if isinstance(d, ast.Call) and ast.unparse(d.func).endswith(("command", "group"))]
    keywords = [k for call in calls for k in call.keywords]
    return {k.arg: str(k.value.value) for k in keywords if k.arg and isinstance(k.value, ast.Constant)}


def source_of(module: str) -> Path:
    """The file of a module, found without executing its package."""
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top)
    folders = [Path(p) for p in (spec.submodule_search_locations if spec else None) or ()]
    if spec and spec.origin and not below:
        return Path(spec.origin)
    for folder in folders:
        for path in (folder.joinpath(*below).with_suffix(".py"), folder.joinpath(*below, "__init__.py")):
            if path.is_file():
                return path
    raise FileNotFoundError(module)
