"""Python functions as tools: the signature is the schema, the docstring the description."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError, foreign_code
from rlhf_core.data import Tool
from rlhf_core.rollouts import ToolResult
from rlhf_plugin_episodes.tool_spec import tool_spec

TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
"""Annotations of parameters -> types of JSON schema; what is not among them is left open."""


def specs_in(file: str) -> list[Tool]:
    """The public functions of a Python file as tools; the file is read, not imported."""
    try:
        tree = ast.parse(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError("a file of tools cannot be read", where=file, why=str(error), fix="a Python file") from error
    nodes = [n for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    if not nodes:
        raise ConfigError("a file of tools has no function", where=file, fix="def add(a: int, b: int) -> int: ...")
    return [_spec(node, file) for node in nodes]


def _spec(node: ast.FunctionDef, file: str) -> Tool:
    signature = node.args
    if signature.vararg or signature.kwarg or signature.posonlyargs:
        raise ConfigError(
            f"function '{node.name}' takes arguments without names",
            where=f"{file}, line {node.lineno}",
            why="a call names every argument",
            fix="give it parameters with names, without * and /; a name that begins with _ is not a tool",
        )
    optional = {a.arg for a in signature.args[len(signature.args) - len(signature.defaults) :]}
    optional |= {a.arg for a, default in zip(signature.kwonlyargs, signature.kw_defaults) if default is not None}
    every = [*signature.args, *signature.kwonlyargs]
    spec = tool_spec(
        node.name,
        (ast.get_docstring(node) or node.name.replace("_", " ")).strip(),
        [a.arg for a in every if a.arg not in optional],
    )
    spec["function"]["parameters"]["properties"].update({a.arg: _schema(a.annotation) for a in every})
    return spec


def _schema(annotation: ast.expr | None) -> dict[str, Any]:
    """Example: ``list[int]`` is ``{"type": "array"}``."""
    node = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    text = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else ""
    return {"type": TYPES[text]} if isinstance(text, str) and text in TYPES else {}


class FunctionTool:
    """Calls one function; what it returns is shown to the policy, anything but a text as JSON."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def call(self, **arguments: Any) -> str | ToolResult:
        value = self.function(**arguments)
        return value if isinstance(value, str | ToolResult) else json.dumps(value, ensure_ascii=False, default=str)


def load_functions(file: str) -> dict[str, FunctionTool]:
    path = Path(file).expanduser()
    spec = importlib.util.spec_from_file_location(f"tools_of_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError("a file of tools is not a Python module", where=file, fix="name it *.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    with foreign_code("a file of tools cannot be loaded", file, "correct the file", ConfigError):
        spec.loader.exec_module(module)
    return {name: FunctionTool(getattr(module, name)) for name in (s["function"]["name"] for s in specs_in(file))}
