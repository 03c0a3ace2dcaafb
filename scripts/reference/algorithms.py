"""docs/reference/algorithms.md: the defaults of each algorithm, as `rlhf train --algo NAME` resolves them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config.load import resolve
from rlhf_core.plugins.registry import Registry

LEFT_OUT = re.compile(
    r"\.(name|betas|eps|weight_decay|max_grad_norm|top_p|top_k|min_p|min_tokens|stop|track|sync_every|level|low)$"
    r"|^(seed|model|rollout|agent|strategy|monitors|trackers|benchmarks|threads|dataset|matmul|deterministic)\b"
    r"|^trainer\.(deadlines|rollouts|importance|eval_|checkpoint_|keep_|trace_|reward_|micro_batch|gold_|self_check)"
    r"|^trainer\.(packing|share_prefix|chunked_head|precision|drift_check|max_missing|gradient_accumulation)"
    r"|^reward\.(?!name$)"
)
"""Settings that every algorithm shares: the configuration's reference has them."""
EMPTY: tuple[Any, ...] = (None, [], {}, "")
OFF: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
"""Values that change nothing: a page names such a setting only where the algorithm gives it another value."""
BASES: Mapping[str, str] = {
    **dict.fromkeys(("grpo_paper", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp"), "grpo"),
    "orm": "prm",
}
"""Algorithm -> the one whose page has the settings that both share."""


def page() -> str:
    registry = Registry(disabled=())
    names = sorted(e.name for e in registry.entries("trainer") if e.distribution.startswith("rlhf-"))
    head = "# Defaults of the algorithms\n\nSettings of an algorithm, its loss and its advantage. "
    return head + "[All settings](components/trainer.md).\n" + "".join(section(registry, name) for name in names)


def section(registry: Registry, algorithm: str) -> str:
    text, base = table(registry, algorithm), BASES.get(algorithm)
    differs = f"\nAs [{base}](#{base})" + (", but for:\n" if text else ".\n") if base else ""
    return f"\n## {algorithm}\n{differs}{text}"


def table(registry: Registry, algorithm: str) -> str:
    """Rows of setting and value, of an algorithm with a base those that differ from it.

    Where values depend on model or reward, a second table has a column for each.
    """
    columns, values = shown(registry, algorithm)
    if base := BASES.get(algorithm):
        shared = shown(registry, base)[1]
        values = {key: row for key, row in values.items() if shared.get(key) != row}
    alike = {key: row[:1] for key, row in values.items() if row.count(row[0]) == len(row)}
    different = {key: row for key, row in values.items() if key not in alike}
    tables = [markdown(["every model"], alike) if alike else "", markdown(columns, different) if different else ""]
    return "".join(tables)


def shown(registry: Registry, algorithm: str) -> tuple[list[str], Mapping[str, list[Any]]]:
    """Columns, and a value of each column for every setting that says something."""
    usual, other = settings(registry, algorithm, "pocket"), settings(registry, algorithm, "MODEL")
    columns = {"pocket model": usual, "other models": other}
    if "reward" in usual:
        verified = settings(registry, algorithm, "pocket", "verifier")
        columns = {"pocket model, ensemble": usual, "pocket model, other rewards": verified, "other models": other}
        for column in columns.values():
            del column["reward"]
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    values = {key: [column.get(key) for column in columns.values()] for key in keys}
    telling = {key: row for key, row in values.items() if any(value not in (*EMPTY, OFF.get(key)) for value in row)}
    return list(columns), telling


def markdown(columns: Sequence[str], rows: Mapping[str, Sequence[Any]]) -> str:
    head = f"| setting | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}\n"
    lines = [f"| `{key}` | {' | '.join(f'`{json.dumps(value)}`' for value in row)} |\n" for key, row in rows.items()]
    return f"\n{head}{''.join(lines)}"


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
