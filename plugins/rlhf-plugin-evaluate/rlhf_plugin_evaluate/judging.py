"""A judge compares two responses, once in each order, so that a liking for the first or second place cancels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data import JsonlFile, Prompt, read_jsonl
from rlhf_plugin_evaluate.responses import CHUNK
from rlhf_plugin_judge import pairwise
from rlhf_plugin_judge.rewards import Asking

CRITERION = (
    "Decide which one a careful user would prefer: right before wrong, to the point before padded, "
    "plain before flattering."
)
Row = Mapping[str, Any]


def compare(
    judge: Any,
    prompts: Sequence[Prompt],
    ours: Sequence[Row],
    theirs: Sequence[Row],
    file: Path,
    seed: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """One row per prompt, resumable: the share won in both orders as ``outcome``, None without both answers."""
    rows = list(read_jsonl(file))
    out = JsonlFile.resume(file)
    try:
        for start in range(len(rows), len(prompts), CHUNK):
            span = slice(start, start + CHUNK)
            matches = [
                pairwise.Match(p.id, p.messages, o["completion"], t["completion"])
                for p, o, t in zip(prompts[span], ours[span], theirs[span], strict=True)
            ]
            for match, outcome in zip(matches, pairwise.compare(judge, matches, CRITERION, Asking(seed=seed))):
                rows.append(row_of(match, outcome))
                out.append(rows[-1])
            say(f"judge: {len(rows)} of {len(prompts)} prompts")
    finally:
        out.close()
    return rows


def row_of(match: pairwise.Match, outcome: pairwise.Outcome) -> dict[str, Any]:
    return {
        "id": match.id,
        "outcome": outcome.share,
        "flipped": outcome.flipped,
        "same": match.first == match.second,
        "cost_usd": outcome.cost_usd,
        **({"detail": outcome.detail} if outcome.detail else {}),
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """How often the order decided, how often no answer came, and what it cost."""
    judged_rows = [r for r in rows if not r["same"]]
    decided_rows = [r for r in judged_rows if r["outcome"] is not None]
    return {
        "asked": len(judged_rows),
        "same_text": len(rows) - len(judged_rows),
        "no_verdict": len(judged_rows) - len(decided_rows),
        "order_decided": sum(r["flipped"] for r in decided_rows) / len(decided_rows) if decided_rows else None,
        "cost_usd": sum(r["cost_usd"] for r in rows),
    }
