"""What `rlhf data generate` prints for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.cli import say, table


def show(result: Mapping[str, Any]) -> None:
    say(f"{result['rows']} rows in {result['output']}")
    if result["left_out"]:
        why = ", ".join(f"{reason} {count}" for reason, count in sorted(result["left_out_reasons"].items()))
        say(f"{result['left_out']} left out ({why}), in {result['output']}.left_out.jsonl")
    if result["unanswered"]:
        say(
            f"{result['unanswered']} without an answer (first: {result['first_unanswered']}); the same command "
            "asks them again"
        )
    for name, key in (("this call", "usage"), ("all rows", "usage_of_file")):
        usage = result[key]
        say(
            f"{name}: {usage['requests']} answers ({usage['cached']} kept from before), {usage['input_tokens']} + "
            f"{usage['output_tokens']} tokens, {usage['cost_usd']:.4f} USD"
        )


def show_estimate(estimate: Mapping[str, Any]) -> None:
    say(f"{estimate['kind']}: {estimate['prompts']} prompts, {estimate['done']} of them done; nothing is asked now\n")
    table(
        ("", "asked", "requests", "input tokens", "output tokens", "USD"),
        [estimate_row("responses", estimate["generator"]), estimate_row("judge", estimate["judge"])],
    )
    say(
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
