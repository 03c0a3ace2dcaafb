"""The public topics: what type checkers see is what is there, and importing them is light."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from rlhf_core._surface import public_names
from scripts.check.imports import TOPICS

LIMIT = 126
"""Public names today; the number may only fall, or rise by an ADR (0029)."""


@pytest.mark.parametrize("topic", TOPICS)
def test_every_public_name_is_where_its_module_says_and_documented(topic: str) -> None:
    module = import_module(topic)
    names = public_names(topic)
    assert dir(module) == sorted(names)
    for name, home in names.items():
        thing = getattr(module, name)
        assert thing is getattr(import_module(home), name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert (thing.__doc__ or "").strip(), name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_importing_the_topics_brings_no_torch() -> None:
    code = f"import sys, {', '.join(TOPICS)}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_name_has_two_topics_and_there_are_no_more_than_today() -> None:
    for topic in TOPICS:
        import_module(topic)
    names = [name for topic in TOPICS for name in public_names(topic)]
    assert sorted(names) == sorted(set(names))
    assert len(names) <= LIMIT
