"""Small, seeded inputs that the kit feeds to components."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext, Registry
from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample
from rlhf_core.rollouts import FinishReason, Rollout

GARBAGE = (
    "",
    " \n\t ",
    "\x00\x01\ufffd",
    "((((" * 200,
    "9" * 5000,
    "\\boxed{",
    "<answer>",
    "\U0001f4a5" * 50,
    "1/0 nan inf -1e999",
)
"""Completions that a policy does produce early in training."""


class ByteTokenizer:
    """A stand-in for a model's tokenizer: one token per byte."""

    eos_token_id = 256

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")


def make_context(run_dir: Path | None = None, **fields: Any) -> BuildContext:
    """A context outside any run: the installed components, seed 0, and a stand-in policy with a tokenizer.

    Example:
        >>> make_context(seed=3).seed
        3
    """
    given: dict[str, Any] = {
        "config": None,
        "registry": Registry(disabled=()),
        "seed": 0,
        "run_dir": run_dir,
        "policy": SimpleNamespace(tokenizer=ByteTokenizer(), model=None, context=4096),
        **fields,
    }
    return BuildContext(**given)


def make_samples() -> list[Sample]:
    """Completions to sums: right, wrong, wordy, empty and garbled; the last prompt has no reference answer."""
    good = [
        _sample(i, text, str(i + 2))
        for i in range(4)
        for text in (f"The answer is {i + 2}.", f"#### {i}", "I do not know.")
    ]
    return [*good, *(_sample(9, text, "11") for text in GARBAGE), _sample(10, "The answer is 4.", None)]


def _sample(i: int, completion: str, answer: str | None) -> Sample:
    prompt = Prompt(f"kit/{i}", ({"role": "user", "content": f"What is {i} + 2?"},), answer, "kit")
    return Sample(prompt, completion, FinishReason.EOS)


def make_rollouts(groups: int, group_size: int) -> tuple[list[Rollout], list[int]]:
    """Rollouts of different lengths, and the group of each."""
    rng = np.random.default_rng(0)
    rows = [(p, g) for p in range(groups) for g in range(group_size)]
    return [make_rollout(p, g, 2 + int(rng.integers(4))) for p, g in rows], [p for p, _ in rows]


def make_rollout(prompt: int, index: int, length: int) -> Rollout:
    ids = tuple(range(5, 5 + length))
    return Rollout(
        f"kit/{prompt}",
        index,
        (1, 2, 3),
        ids,
        np.full(length, -0.5, np.float32),
        0,
        FinishReason.EOS,
        "x" * length,
        seed=prompt * 1000 + index,
    )


@functools.cache
def pocket_policy() -> Any:
    """The built-in model, loaded once in a process."""
    from rlhf_core.models import ModelConfig, load_policy

    return load_policy(ModelConfig())


def policy_context(**fields: Any) -> BuildContext:
    """A context outside any run whose policy is the built-in model.

    Example:
        check_rollout(config, policy_context(seed=3))
    """
    return make_context(policy=pocket_policy(), **fields)
