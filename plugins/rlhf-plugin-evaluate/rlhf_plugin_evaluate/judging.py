"""A judge compares two responses, once in each order, so that a liking for the first or second place cancels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.api import JudgeReply, JudgeRequest
from rlhf_core.runs.jsonl import JsonlFile, read_jsonl
from rlhf_plugin_evaluate.responses import CHUNK, whole_lines

SYSTEM = """You compare two responses to the same prompt. Decide which one a careful user would prefer: right before \
wrong, to the point before padded, plain before flattering. Length by itself is no merit.
Answer with one word: A if the first response is better, B if the second is, TIE if neither is."""
QUESTION = """Prompt:
{prompt}

Response A:
{a}

Response B:
{b}

Which response is better: A, B or TIE?"""
VERDICT = re.compile(r"\W*(?:(?:response|answer|verdict|better)\W+(?:is\W+)?)?(A|B|TIE)\W*", re.IGNORECASE)
Row = Mapping[str, Any]


def requests(number: int, ours: Row, theirs: Row, seed: int) -> list[JudgeRequest]:
    """Both orders: ours as A, then ours as B."""
    def one(order: str, a: str, b: str) -> JudgeRequest:
        text = QUESTION.format(prompt=ours["prompt"], a=a, b=b)
        return JudgeRequest(f"{number}:{order}", ({"role": "user", "content": text},), SYSTEM, 8, 0.0, seed)

    return [one("ab", ours["completion"], theirs["completion"]), one("ba", theirs["completion"], ours["completion"])]


def verdict(reply: JudgeReply) -> float | None:
    """1.0 for A, 0.0 for B, 0.5 for a tie; None where the judge says anything else: a sentence may hold an "a"."""
    found = VERDICT.fullmatch(reply.text or "") if reply.ok else None
    return {"A": 1.0, "B": 0.0, "TIE": 0.5}[found[1].upper()] if found else None


def compare(judge: Any, ours: Sequence[Row], theirs: Sequence[Row], file: Path, seed: int,
            say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row per prompt: verdicts of both orders from our side, and their mean as ``outcome``; resumable.

    ``outcome`` is None unless both orders got an answer; equal responses are a tie and cost no question.
    """
    rows = list(read_jsonl(file))
    out = JsonlFile(file, whole_lines(file))
    try:
        for start in range(len(rows), len(ours), CHUNK):
            span = range(start, min(start + CHUNK, len(ours)))
            asked = [i for i in span if ours[i]["completion"] != theirs[i]["completion"]]
            replies = list(judge.ask([q for i in asked for q in requests(i, ours[i], theirs[i], seed)]))
            found = {i: replies[2 * n : 2 * n + 2] for n, i in enumerate(asked)}
            for i in span:
                rows.append(outcome(ours[i]["id"], found.get(i)))
                out.append(rows[-1])
            say(f"judge: {len(rows)} of {len(ours)} prompts")
    finally:
        out.close()
    return rows


def outcome(name: str, replies: Sequence[JudgeReply] | None) -> dict[str, Any]:
    """The row of one prompt; None for equal responses."""
    if replies is None:
        return {"id": name, "outcome": 0.5, "same": True, "cost_usd": 0.0}
    first, second = verdict(replies[0]), verdict(replies[1])
    second = None if second is None else 1.0 - second
    both = None if first is None or second is None else (first + second) / 2
    detail = "; ".join(r.detail or (r.text or "")[:80] for r, v in zip(replies, (first, second)) if v is None)
    return {"id": name, "outcome": both, "first": first, "second": second, "same": False,
            "cost_usd": sum(r.cost_usd for r in replies), **({"detail": detail} if detail else {})}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How often the order decided, how often no answer came, and what it cost."""
    asked = [r for r in rows if not r["same"]]
    both = [r for r in asked if r["outcome"] is not None]
    flips = sum(abs(r["first"] - r["second"]) == 1.0 for r in both)
    return {"asked": len(asked), "same_text": len(rows) - len(asked), "no_verdict": len(asked) - len(both),
            "order_decided": flips / len(both) if both else None, "cost_usd": sum(r["cost_usd"] for r in rows)}
