"""Instruction ids, their arguments, and what is wrong with a row that names others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rlhf_plugin_verifiers.instructions.ifbench_custom import CUSTOM
from rlhf_plugin_verifiers.instructions.ifbench_form import FORM
from rlhf_plugin_verifiers.instructions.ifbench_words import WORDS
from rlhf_plugin_verifiers.instructions.ifeval import IFEVAL
from rlhf_plugin_verifiers.instructions.language import installed

Check = Callable[[str], bool]
INSTRUCTIONS: Mapping[str, Callable[..., bool]] = {**IFEVAL, **WORDS, **FORM, **CUSTOM}
NEEDS_LANGUAGE = frozenset(
    {"language:response_language", "change_case:english_capital", "change_case:english_lowercase"}
)


def checks(ids: Sequence[str], arguments: Sequence[Mapping[str, Any] | None]) -> list[Check]:
    """The checks of one row. The prefix ``en:`` of multilingual collections is ignored; arguments that are None, or
    that another instruction takes, are left out. Raises ValueError, also for a missing package."""
    if len(ids) != len(arguments):
        raise ValueError(f"{len(ids)} instructions but {len(arguments)} kwargs")
    return [_check(name.removeprefix("en:"), kwargs or {}) for name, kwargs in zip(ids, arguments)]


def _check(name: str, kwargs: Mapping[str, Any]) -> Check:
    check = INSTRUCTIONS.get(name)
    if check is None:
        raise ValueError(f"unknown instruction '{name}'{_near(name)}")
    if name in NEEDS_LANGUAGE and not installed():
        raise ValueError(f"instruction '{name}' needs langdetect: pip install 'rlhf-plugin-verifiers[language]'")
    parameters = [p for p in inspect.signature(check).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    missing = [p.name for p in parameters if kwargs.get(p.name) is None and p.default is inspect.Parameter.empty]
    if missing:
        raise ValueError(f"instruction '{name}' lacks '{missing[0]}' in its kwargs")
    return partial(check, **{p.name: kwargs[p.name] for p in parameters if kwargs.get(p.name) is not None})


def _near(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, INSTRUCTIONS, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
