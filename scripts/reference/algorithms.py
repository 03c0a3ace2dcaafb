"""The tables of defaults in docs/algorithms/: what `rlhf train --algo NAME` resolves to, between two comments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config.load import resolve
from rlhf_core.plugins.registry import Registry

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"
MARKED = re.compile(r"<!-- defaults: (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)
LEFT_OUT = re.compile(
    r"\.(name|betas|eps|weight_decay|max_grad_norm|top_p|top_k|min_p|min_tokens|stop|track|sync_every|level|low)$"
    r"|^(seed|model|rollout|agent|strategy|monitors|trackers|benchmarks|threads|dataset|matmul|deterministic)\b"
    r"|^trainer\.(deadlines|rollouts|importance|eval_|checkpoint_|keep_|trace_|reward_|micro_batch|gold_|self_check)"
    r"|^trainer\.(packing|share_prefix|chunked_head|precision|drift_check|max_missing|gradient_accumulation)"
    r"|^reward\.(?!name$)"
)
"""Settings that every algorithm shares: the configuration's reference has them."""
EMPTY: tuple[Any, ...] = (None, [], {}, "")


def pages() -> Mapping[Path, str]:
    """Each page with its tables written anew."""
    registry = Registry(disabled=())
    return {
        page: MARKED.sub(lambda m: f"<!-- defaults: {m['name']} -->\n{table(registry, m['name'])}<!-- end -->", text)
        for page in sorted(PAGES.glob("*.md"))
        if MARKED.search(text := page.read_text())
    }


def table(registry: Registry, algorithm: str) -> str:
    """Rows of setting and values: for the pocket model, also under another reward, and for any other model."""
    usual, other = settings(registry, algorithm, "pocket"), settings(registry, algorithm, "MODEL")
    columns = {"pocket model": usual, "other models": other}
    if "reward" in usual:
        verified = settings(registry, algorithm, "pocket", "verifier")
        columns = {"pocket model, ensemble": usual, "pocket model, other rewards": verified, "other models": other}
        for column in columns.values():
            del column["reward"]
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    rows = [
        (f"`{key}`", *(f"`{json.dumps(column[key])}`" if key in column else "" for column in columns.values()))
        for key in keys
        if any(column.get(key) not in EMPTY for column in columns.values())
    ]
    head = f"\n| setting | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"


def settings(registry: Registry, algorithm: str, model: str, reward: str | None = None) -> dict[str, Any]:
    """Dotted key -> value of what the algorithm decides, components by name."""
    dataset = {"name": "jsonl", "path": "FILE"}  # not every algorithm has one of its own
    user: dict[str, Any] = {"trainer": {"name": algorithm}, "model": {"path": model}, "dataset": dataset}
    data = resolve(registry, sugar=user | ({"reward": {"name": reward}} if reward else {})).model_dump(mode="json")
    chosen = {kind: data[kind]["name"] for kind in ("loss", "advantage", "reward") if data.get(kind)}
    flat = {**chosen, **flatten(data)}
    return {key: value for key, value in flat.items() if not LEFT_OUT.search(key) or key in chosen}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
