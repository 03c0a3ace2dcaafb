"""Accuracy for each value of a column of the rows (level, subject, source, ...), or for each band of pass rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError, Prompt, check_file, read_jsonl
from rlhf_eval.report import by_prompt, judged, pass_rates, right
from rlhf_eval.statistics import mean_interval

BAND = "pass-band"
EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)
NONE = "(none)"
Row = Mapping[str, Any]


def check_columns(by: Sequence[str], prompts: Sequence[Prompt], samples: int) -> None:
    """Refuse a column that no row has, before anything is sampled; and bands without pass rates to take them from."""
    known = sorted({name for prompt in prompts for name in prompt.meta})
    for column in by:
        name, _, file = column.partition("=")
        if name == BAND:
            if not file and samples < 2:
                fix = f"--n 16, or --by {BAND}=FOLDER/pass_rates.jsonl of another evaluation of the same rows"
                raise ConfigError(f"--by {BAND} needs several samples of each prompt", fix=fix)
            if file:
                check_file(file, "file of pass rates", f"--by {BAND}=FILE")
                _rates(file, [prompt.id for prompt in prompts])
        elif all(_inside(prompt.meta, column) is None for prompt in prompts):
            raise ConfigError(
                f"--by {column}: no row has that column",
                why=f"further columns of the rows: {', '.join(known) or 'none'}",
                fix="name one of them, or map it: --set 'dataset={columns: {...}}'",
            )


def breakdown(rows: Sequence[Row], by: Sequence[str], least: float = 1.0) -> dict[str, dict[str, Any]]:
    """Column -> value -> prompts, share of right completions and its 95 % interval over prompts (Wilson's)."""
    return {column: _of_column(rows, _labels(rows, column, least), least) for column in by}


def _of_column(rows: Sequence[Row], labels: Callable[[Row], Sequence[Any]], least: float) -> dict[str, Any]:
    groups: dict[Any, list[float]] = {}
    for group in by_prompt(judged(rows)).values():
        share = sum(right(row, least=least) for row in group) / len(group)
        for label in dict.fromkeys(labels(group[0])):
            groups.setdefault(label, []).append(share)
    ordered = sorted(groups, key=lambda label: (label == NONE, isinstance(label, str), label))
    return {str(label): {"prompts": len(groups[label]), **mean_interval(groups[label])._asdict()} for label in ordered}


def _labels(rows: Sequence[Row], column: str, least: float) -> Callable[[Row], Sequence[Any]]:
    name, _, file = column.partition("=")
    if name != BAND:
        return lambda row: _as_labels(_inside(row.get("meta") or {}, column))
    own = {} if file else {r["id"]: r["pass_rate"] for r in pass_rates(rows, least)}
    rates = _rates(file, [row["id"] for row in rows]) if file else own
    return lambda row: [band(rates[row["id"]]) if row["id"] in rates else NONE]


def _rates(file: str, ids: Sequence[str]) -> Mapping[str, float]:
    """Pass rate by id of a file that has one for some of ``ids``."""
    rates = {str(r["id"]): float(r["pass_rate"]) for r in read_jsonl(Path(file))}
    if not {*ids} & {*rates}:
        raise DatasetError(
            f"'{file}' has no pass rate of any of the rows",
            why=f"ids there: {', '.join(list(rates)[:3])}; here: {', '.join(ids[:3])}",
            fix="take an evaluation of the same rows",
        )
    return rates


def band(rate: float) -> str:
    """Example: ``band(0.3)`` is ``"0.25 to 0.5"``; prompts that are never or always solved stand alone."""
    if rate in (0.0, 1.0):
        return f"{rate:g}"
    low = max(edge for edge in EDGES if edge < rate)
    return f"{low:g} to {min(edge for edge in EDGES if edge >= rate):g}"


def _as_labels(value: Any) -> Sequence[Any]:
    """A list counts under each of its values."""
    if isinstance(value, list | tuple):
        return [label for part in value for label in _as_labels(part)] or [NONE]
    if value is None or isinstance(value, Mapping):
        return [NONE]
    return [value if isinstance(value, str | int | float) and not isinstance(value, bool) else str(value)]


def _inside(meta: Mapping[str, Any], name: str) -> Any:
    value: Any = meta
    for part in (name,) if name in meta else name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
