"""Lazy public surface: a package lists its names once, under ``if TYPE_CHECKING``; each is imported when asked for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def surface(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a module whose public names stand under its ``if TYPE_CHECKING``.

    Example:
        if TYPE_CHECKING:
            from rlhf_core.types.batches import LossOutput as LossOutput

        __getattr__, __dir__ = surface(__name__)
    """

    def get(name: str) -> Any:
        if name == "__all__":  # for ``import *``
            return sorted(public_names(module))
        home = public_names(module).get(name)
        if home is None:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        return getattr(import_module(home), name)

    return get, lambda: sorted(public_names(module))


@cache
def public_names(module: str) -> Mapping[str, str]:
    """Name -> module that defines it, of every public name of a loaded module."""
    tree = ast.parse(Path(str(sys.modules[module].__file__)).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname}
