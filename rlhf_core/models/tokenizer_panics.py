"""A regular expression of a model's ``tokenizer.json`` is code of its folder: where it fails on a text, it is named."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rlhf_core.types.errors import ModelError

PROBE = " ".join(f"{letter * 60}!" for letter in "aA0_ \n")
"""Expressions that try every way to cut a text, such as ``(a+)+b``, fail on runs of one letter."""


def name_panics(tokenizer: Any) -> None:
    """Let every tokenizer of this class name itself where the tokenizers library panics, and try a few texts at once.

    Raises:
        ModelError: names the tokenizer; a panic itself is taken by no ``except Exception``.
    """
    for name in ("_encode_plus", "_decode"):
        call = getattr(type(tokenizer), name)
        if not hasattr(call, "names_panics"):
            setattr(type(tokenizer), name, _naming(call))
    tokenizer.decode(tokenizer.encode(PROBE, verbose=False))


def _naming(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def named(tokenizer: Any, *args: Any, **options: Any) -> Any:
        try:
            return call(tokenizer, *args, **options)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            why, fix = f"the tokenizers library gave up: {error}", "correct its regular expressions, such as (a+)+"
            what = f"the tokenizer of '{tokenizer.name_or_path}' cannot read or write a text"
            raise ModelError(what, where="tokenizer.json", why=why, fix=fix) from error

    named.names_panics = True  # type: ignore[attr-defined]
    return named
