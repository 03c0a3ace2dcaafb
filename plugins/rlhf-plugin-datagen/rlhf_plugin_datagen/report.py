"""What `rlhf data generate` prints for people, and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rlhf_core.cli import table
from rlhf_core.config import ConfigError, RlhfError

FIXES = {
    "cut_off": "raise --max-tokens",
    "identical_responses": "raise --temperature, or take another model for the responses",
    "tie": "take another --judge",
    "order_decides": "take another --judge",
    "judge_unusable": "take another --judge, or raise --judge-tokens",
}
"""Reason for which most is left out -> what to do."""


def show(result: Mapping[str, Any]) -> None:
    click.echo(f"{result['rows']} rows of {result['prompts']} prompts in {result['output']}")
    for text in shortfall(result):
        click.echo(text)
    for name, key in (("this call", "usage"), ("all rows", "usage_of_file")):
        usage = result[key]
        click.echo(
            f"{name}: {usage['requests']} answers ({usage['cached']} kept from before), {usage['input_tokens']} + "
            f"{usage['output_tokens']} tokens, {usage['cost_usd']:.4f} USD"
        )


def shortfall(result: Mapping[str, Any]) -> list[str]:
    """How many prompts gave no row, and why."""
    texts: list[str] = []
    if result["left_out"]:
        why = ", ".join(f"{reason} {count}" for reason, count in sorted(result["left_out_reasons"].items()))
        texts.append(f"{result['left_out']} left out ({why}), in {result['output']}.left_out.jsonl")
    if result["unanswered"]:
        first = result["first_unanswered"]
        texts.append(f"{result['unanswered']} without an answer (first: {first}); the same command asks them again")
    return texts


def require_rows(result: Mapping[str, Any]) -> None:
    """Raise where there is no row at all: nothing can be trained on the file. What was answered and left out, or does
    not fit a context, is for the user to change; what was not answered is a failure."""
    if result["rows"]:
        return
    reasons: Mapping[str, int] = result["left_out_reasons"]
    error = RlhfError if result["unanswered"] and "context" not in str(result["first_unanswered"]) else ConfigError
    fix = "see that the models answer, then give the same command again"
    if "the question alone" in str(result["first_unanswered"]):
        fix = "take shorter prompts, or a model with a longer context (--model, --judge)"
    elif "context" in str(result["first_unanswered"]):
        fix = "lower --max-tokens or --judge-tokens"
    elif reasons:
        most = max(reasons, key=lambda reason: reasons[reason])
        fix = FIXES.get(most, "take other models") + ", and another --output"
    raise error(
        f"no row of {result['kind']} was made of {result['prompts']} prompts", why="; ".join(shortfall(result)), fix=fix
    )


def show_estimate(estimate: Mapping[str, Any]) -> None:
    click.echo(
        f"{estimate['kind']}: {estimate['prompts']} prompts, {estimate['done']} of them done; nothing is asked now\n"
    )
    table(
        ("", "asked", "requests", "input tokens", "output tokens", "USD"),
        [estimate_row("responses", estimate["generator"]), estimate_row("judge", estimate["judge"])],
    )
    click.echo(
        f"\nabout {estimate['cost_usd']:.4f} USD, with every answer at its longest; a repair of an unusable answer "
        "and retries come on top"
    )


def estimate_row(role: str, part: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        role,
        part["asked"],
        part["requests"],
        f"about {part['input_tokens']}",
        f"at most {part['output_tokens']}",
        f"{part['cost_usd']:.4f}",
    )
