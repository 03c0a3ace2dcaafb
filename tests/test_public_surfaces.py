"""The promised surfaces: what type checkers see is what is there, and importing them is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import rlhf_core.api
import rlhf_core.sdk

import rlhf_core.training.functional

SURFACES = [rlhf_core.api, rlhf_core.sdk, rlhf_core.training.functional]


def shown_to_type_checkers(surface: ModuleType) -> dict[str, str]:
    """Name -> module that it is imported from, of the block under TYPE_CHECKING."""
    tree = ast.parse(Path(str(surface.__file__)).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    imports = [n for n in block.body if isinstance(n, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    names = [(a, str(n.module)) for n in imports for a in n.names]
    assert all(a.asname == a.name for a, _ in names), "what has a good name here has it in the core, too"
    return {a.name: module for a, module in names}


@pytest.mark.parametrize("surface", SURFACES)
def test_names_for_type_checkers_are_the_names_at_run_time(surface: ModuleType) -> None:
    shown = shown_to_type_checkers(surface)
    assert set(shown) == set(surface.__all__)
    for name, module in shown.items():
        assert getattr(surface, name) is getattr(import_module(module), name), name


@pytest.mark.parametrize("surface", SURFACES)
def test_an_unknown_name_is_an_attribute_error(surface: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = surface.no_such_name


@pytest.mark.parametrize("surface", SURFACES)
def test_importing_it_brings_no_torch(surface: ModuleType) -> None:
    code = f"import sys, {surface.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_name_is_in_two_surfaces() -> None:
    names = [name for surface in SURFACES for name in surface.__all__]
    assert sorted(names) == sorted(set(names))


def test_every_name_of_the_sdk_says_what_it_is() -> None:
    for name in rlhf_core.sdk.__all__:
        thing = getattr(rlhf_core.sdk, name)
        assert not callable(thing) or (thing.__doc__ or "").strip(), name


def test_the_sdk_is_read_in_ten_minutes() -> None:
    assert len(rlhf_core.sdk.__all__) <= 144
