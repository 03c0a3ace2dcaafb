"""What is done with each command of the documentation: executed, executed as a dry run, or not, and why not."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.docs.blocks import Command

TUTORIAL = "docs/tutorial.md"
NOT_RUN: dict[str, str] = {
    r"^rlhf reward score .*--reward (judge|rubric)\b|^rlhf discover .*anthropic|^pip .*wandb|ANTHROPIC": "needs a key",
    r"^rlhf eval lm_eval:|Qwen/Qwen3-4B": "needs a network",
    r"^tensorboard|^twine|^python -m (build|twine)|^rlhf (dashboard|tts listen)": "a server, or a publication",
    r"^rlhf study run": "minutes to hours; the studies' own tests run each with --smoke",
    r"^rlhf discover|^python -m (rlhf_plugin_code.redteam|scripts)|^python scripts": "minutes; has tests of its own",
    r"^make (test|lint)$": "run by .ci/run",
    r"^(make|bash|pytest|cd|export|git|source)\b": "of a checkout; its tests look up targets and packages",
    r"^rlhf data flywheel|^rlhf reward ensemble": "minutes; has tests of its own",
    r"reward.path=runs/(prm|rubric)/final": "a reward that only its plugin's tests train",
    r"^rlhf data check|^rlhf config from-": "run by tests/data/test_data_page.py and the plugin's test_page.py",
    r"^rlhf doctor$": "run by tests/cli/test_doctor.py",
    r"reasoning_gym": "needs a C compiler",
    r"my_loss": "a package that the reader writes; tests/plugins/test_scaffold.py does all of it",
}
"""Patterns of commands that are not executed. Their options are still checked."""

TRAINED = re.compile(
    r"^rlhf (eval|memory plan|tts|data pairs|reward evaluate|generate|chat|push) |\bRUN\b"
    r"|runs/(?!sft/final|rm/final|other)|evals/"
)
"""Commands that want a trained run, or that work with a model: executed by the slow part."""

SMALL: dict[str, list[str]] = {
    "rlhf train --resume": ["--dry-run"],
    "rlhf train": ["--dry-run", "--set", "dataset.limit=256"],
    "rlhf data pairs": ["--count", "8"],
    "rlhf data demonstrations lookup": ["--set", "prompts=40"],
    "rlhf recipe run": ["--dry-run"],
    "rlhf data generate": ["--dry-run"],
    "rlhf push": ["--dry-run"],
    "rlhf eval policies": ["--prompts", "4", "--max-tokens", "4"],
    "rlhf eval agentbench_mini": ["--max-per-category", "1", "--set", "agent_settings.max_turn_tokens=4"],
    "rlhf eval chains": ["--max-per-category", "1"],
    "rlhf eval code_debug": ["--max-per-category", "1"],
    "rlhf eval agentbench_generated": ["--max-per-category", "1"],
    "rlhf eval gaia_mini": ["--max-per-category", "1"],
    "rlhf eval injection": ["--max-per-category", "1"],
    "rlhf eval episodes": ["--limit", "2"],
    "rlhf eval": ["--limit", "2", "--max-tokens", "4"],
    "rlhf reward evaluate": ["--limit", "16", "--probe-pairs", "4"],
    "rlhf memory plan --algo grpo": ["--set", "trainer.micro_batch_size=2"],
}
"""What is appended, so that a command takes seconds."""

KEYS = {"ANTHROPIC_API_KEY": "no key", "WANDB_API_KEY": "no key"}
"""What a dry run looks for, and nothing reads."""


LISTS = re.compile(r"^rlhf eval (suites|compare)")
"""Commands of that group that take no such option."""


class Way(NamedTuple):
    """How a command is treated."""

    kind: str
    """``run``, ``slow`` (wants a trained run), ``tutorial`` (executed as written, in order), ``elsewhere`` (by
    another test) or ``not run``."""
    reason: str = ""


def way(command: Command) -> Way:
    """The treatment of one command."""
    text = " ".join(command.words)
    if command.block.page == TUTORIAL:
        return Way("tutorial")
    if command.block.reason:
        return Way("elsewhere" if command.block.reason.startswith("run by ") else "not run", command.block.reason)
    if command.piped:
        return Way("slow")
    for pattern, reason in NOT_RUN.items():
        if re.search(pattern, text):
            return Way("elsewhere" if reason.startswith("run by ") else "not run", reason)
    if command.piped or (command.words[0] == "rlhf" and TRAINED.search(re.sub(r"--run-dir \S+", "", text))):
        return Way("slow")
    return Way("run")


def small(command: Command) -> list[str]:
    """The words to execute."""
    text = " ".join(command.words)
    for prefix, more in SMALL.items():
        if text.startswith(prefix + " ") and not LISTS.search(text):  # the first prefix that fits
            return [*command.words, *(m for m in more if m != "--dry-run" or m not in command.words)]
    return command.words
