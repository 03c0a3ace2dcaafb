"""Conformance of dataset sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.data import DatasetError, DatasetSettings
from rlhf_core.data.settings import section_keys
from rlhf_testing.config import built, check_config
from rlhf_testing.report import frozen, require
from rlhf_testing.samples import make_context


def check_dataset(
    config: ComponentConfig,
    ctx: BuildContext | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    read: str = "prompts",
) -> None:
    """Check a source: rows are mappings with text keys, the same in every process; ids are unique and no held-out row
    is trained on; the core can read them.

    Args:
        columns: our column -> the source's, as in ``dataset.columns``.
        read: what the core reads from it: ``prompts``, ``pairs`` or ``demonstrations``; "" reads nothing.
    """
    check_config(config, "dataset")
    clash = set(type(config).model_fields) & set(section_keys())
    require(not clash, config, "its settings have names of their own", f"the dataset section has {sorted(clash)} too")
    context = ctx or make_context()
    config.preflight(context)
    source = built(config, "dataset", context)
    rows_by_split = {split: frozen(check_rows(config, source.rows(split), split)) for split in ("train", "heldout")}
    require(bool(rows_by_split["train"]), config, "there are rows to train on", 'rows("train") is empty')
    again = built(config, "dataset", context)
    for split, rows in rows_by_split.items():
        holds = rows == [dict(r) for r in again.rows(split)] == [dict(r) for r in source.rows(split)]
        rule = "rows are the same whenever they are read"
        fix = "draw with a seed from the Config, and sort what a file system or a set returns"
        require(holds, config, rule, f"the {split} rows of two sources, or of two reads, differ", fix)
    check_ids(config, rows_by_split)
    if read:
        check_read(config, context, columns or {}, read)


def check_rows(config: ComponentConfig, returned: Any, split: str) -> list[dict[str, Any]]:
    holds, rule = isinstance(returned, Sequence) and not isinstance(returned, str), "rows(split) returns a sequence"
    require(holds, config, rule, type(returned).__name__, "return a list, or a class with __len__ and __getitem__")
    rows: list[Any] = list(returned)
    for number, row in enumerate(rows):
        rule, seen = "a row is a mapping with text keys", f"{split} row {number}: {row!r}"[:200]
        require(isinstance(row, Mapping) and all(isinstance(k, str) for k in row), config, rule, seen)
    return [dict(r) for r in rows]


def check_ids(config: ComponentConfig, rows_by_split: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    seen: dict[Any, str] = {}
    for split, rows in rows_by_split.items():
        for number, row in enumerate(rows):
            if row.get("id") is None:
                continue
            here = f"{split} row {number}"
            rule = "ids are unique over both splits"
            require(row["id"] not in seen, config, rule, f"{row['id']!r} in {seen.get(row['id'])} and {here}")
            seen[row["id"]] = here


def check_read(config: ComponentConfig, ctx: BuildContext, columns: Mapping[str, str], read: str) -> None:
    """The core makes prompts, pairs or demonstrations of the rows."""
    from rlhf_core.data import Datasets

    source = {"source": config, "columns": dict(columns)}
    settings = DatasetSettings.model_validate({"sources": [source], "heldout_fraction": 0.0})
    try:
        items, problem = getattr(Datasets(settings, ctx), read)("train"), ""
    except DatasetError as error:
        items, problem = [], str(error)
    rule = f"the core can read {read} from the rows"
    require(bool(items), config, rule, problem, "give columns prompt (or messages), answer; or pass columns={...}")
