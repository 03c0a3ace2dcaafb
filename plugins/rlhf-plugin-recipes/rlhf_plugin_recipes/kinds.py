"""Kinds of stages: which command each stands for, and what it leaves in the stage's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

RESULT = "result.json"
"""What a command prints with ``--json``."""


@dataclass(frozen=True)
class Kind:
    """A command that a stage runs."""

    command: tuple[str, ...]
    """Words after ``rlhf``."""
    outputs: Mapping[str, str]
    """Name, as in ``${stages.NAME.OUTPUT}`` -> path in the stage's folder."""
    folder_options: Mapping[str, str]
    """Options that the recipe fills in -> path in the stage's folder."""
    about: str
    asks: tuple[str, ...] = ()
    """Words that come before the options."""
    components: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Option that names a component -> (its kind, the option with its settings or "")."""


_REWARD = {"reward": ("reward", "set")}
_JUDGES = {"judge": ("judge", "set"), "generator": ("judge", "generator_set")}


def _data(what: str, about: str) -> Kind:
    outputs = {"data": "data.jsonl", "result": RESULT}
    return Kind(("data", "generate"), outputs, {"output": "data.jsonl"}, about, (what,), _JUDGES)


KINDS: Mapping[str, Kind] = {
    "train": Kind(("train",), {"model": "final", "run": "."}, {}, "any algorithm: sft, reward_model, grpo, ppo, dpo"),
    "ensemble": Kind(
        ("reward", "ensemble"),
        {"model": "ensemble", "result": RESULT},
        {"output": "ensemble"},
        "several reward models, for `reward: {name: ensemble, path: ...}`",
    ),
    "eval": Kind(
        ("eval", "run"),
        {"rows": "out/rows.jsonl", "pass_rates": "out/pass_rates.jsonl", "folder": "out", "result": RESULT},
        {"out": "out"},
        "benchmark suites",
        (),
        {"suites": ("benchmark", ""), "verifier": ("verifier", "")},
    ),
    "compare": Kind(
        ("eval", "policies"),
        {"folder": "out", "result": RESULT},
        {"out": "out"},
        "win rates of several policies over a baseline",
        (),
        {**_REWARD, "judge": ("judge", "judge_set")},
    ),
    "preferences": _data("preferences", "preference pairs by a judge and a constitution"),
    "demonstrations": _data("sft", "answers that a model has criticised and revised"),
    "grades": _data("grades", "a judge's grades by a rubric"),
    "pairs": Kind(
        ("data", "pairs"),
        {"data": "data.jsonl", "result": RESULT},
        {"output": "data.jsonl"},
        "preference pairs: a model's best and worst answer to each prompt by a reward or the gold score",
        (),
        _REWARD,
    ),
    "filter": Kind(
        ("data", "filter"),
        {"data": "data.jsonl", "result": RESULT},
        {"output": "data.jsonl"},
        "the preference pairs that a reward is surest of",
        (),
        _REWARD,
    ),
    "score": Kind(
        ("reward", "score"),
        {"data": "data.jsonl", "result": RESULT},
        {"output": "data.jsonl"},
        "completions of a file, scored",
        (),
        _REWARD,
    ),
    "generate": Kind(("generate",), {"result": RESULT}, {}, "completions of a model"),
    "command": Kind((), {}, {}, "any other command: `run: reward evaluate`, `outputs: {NAME: FILE}`, ${folder}"),
}
