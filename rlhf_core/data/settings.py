"""Dataset settings: sources, column mapping, mixing, and what happens to rows that cannot be used."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from rlhf_core.plugins.component import Config
from rlhf_core.plugins.entry_points import entries_of
from rlhf_core.plugins.slots import component
from rlhf_core.types.errors import ConfigError

TABLE = re.compile(r"\.(csv|tsv|txt|arrow|json|jsonl|parquet)(\.gz)?$", re.IGNORECASE)
"""Names of files that the data set ``hub`` reads."""


def section_keys() -> tuple[str, ...]:
    """Keys of a flat dataset section that are not the component's own."""
    return (*DatasetSettings.model_fields, *SourceSettings.model_fields)


class SourceSettings(Config):
    """One dataset inside a mixture."""

    source: component("dataset", section_keys)  # pyright: ignore[reportInvalidTypeForm]
    """The dataset component, e.g. ``{name: jsonl, path: prompts.jsonl}``."""
    label: str = ""
    """Name in traces and metrics; defaults to the dataset's own name."""
    weight: float = Field(1.0, gt=0)
    """Relative share of the rows drawn from this source, also in offline training and held-out evaluation."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Our column -> the file's column. Example: ``{prompt: question}``"""
    prompt_template: str | None = None
    """Text around the prompt, with ``{prompt}``. Example: ``"Q: {prompt}\\nA:"``"""
    answer_pattern: str | None = None
    """Regular expression whose first group is the reference answer inside the answer column."""
    reward: component("reward") | None = None  # pyright: ignore[reportInvalidTypeForm]
    """This source's own reward; None uses the run's."""


class CurriculumSettings(Config):
    """Order and filter training prompts by how often a model has solved them; see docs/curricula.md."""

    path: str
    """JSON lines or a JSON array of ``{"id": ..., "pass_rate": ...}``, or one JSON object id -> number."""
    key: str = "pass_rate"
    """The column with the number."""
    order: Literal["easy_first", "hard_first", "none"] = "easy_first"
    """Highest value first, lowest first, or only filter and keep the order there is. Every epoch has the same."""
    band: tuple[float, float] | None = (0.01, 0.99)
    """Only prompts whose value lies in it (ends included) are trained on; None keeps all that have a value."""
    max_unmatched_fraction: float = Field(0.1, ge=0, le=1)
    """The run refuses to start when more than this share of the file's ids, or of the prompts, has no counterpart."""

    @model_validator(mode="after")
    def _ends(self) -> CurriculumSettings:
        if self.band is not None and not self.band[0] <= self.band[1]:
            raise ConfigError(f"curriculum.band {list(self.band)} is empty", fix="put the lower end first")
        return self


class DifficultySettings(Config):
    """Prefer prompts that the policy solves sometimes, by the scores of this very run; see docs/curricula.md."""

    band: tuple[float, float] = (0.1, 0.9)
    """A prompt is preferred while its running mean score lies in it (ends included)."""
    decay: float = Field(0.5, ge=0, lt=1)
    """Weight of a prompt's earlier groups in its running mean: ``rate = decay * rate + (1 - decay) * mean score``."""
    explore: float = Field(0.1, ge=0, le=1)
    """Share of the draws that goes to prompts outside the band, so that their rates do not grow stale."""

    @model_validator(mode="after")
    def _ends(self) -> DifficultySettings:
        if not self.band[0] <= self.band[1]:
            raise ConfigError(f"difficulty.band {list(self.band)} is empty", fix="put the lower end first")
        return self


class DatasetSettings(Config):
    """Where rows come from. A single source may be written flat: ``{name: jsonl, path: x, columns: {...}}``."""

    sources: tuple[SourceSettings, ...] = Field(min_length=1)
    """One or several, mixed by their weights."""
    system_prompt: str | None = None
    """Put in front of every conversation that has no system turn."""
    max_prompt_tokens: int = Field(1024, ge=1)
    """Longer prompts are dropped, counted and summarised."""
    max_dropped_fraction: float = Field(0.1, ge=0, le=1)
    """The run refuses to start when more than this share of the prompts would be dropped."""
    heldout_fraction: float = Field(0.05, ge=0, lt=1)
    """Share of rows set aside when neither ``heldout`` nor the source says which rows are held out."""
    heldout_by: Literal["content", "id", "place"] = "content"
    """What decides that: the prompt's ``content``, so that the same prompts are held out in every file, folder and
    format; the row's explicit ``id`` (else its content); or its ``place``: the file's name with the id or line
    number."""
    heldout: SourceSettings | None = None
    """Rows to hold out instead: a file, a hub id, or a source as in ``sources``. Training rows that ask the same are
    left out and counted."""
    shuffle: bool = True
    """A new order of the rows in each epoch, decided by the run's seed."""
    limit: int | None = Field(None, ge=1)
    """Use only the first N rows of each source."""
    curriculum: CurriculumSettings | None = None
    """Order or filter the training prompts by a pass@k file (on-policy runs)."""
    difficulty: DifficultySettings | None = None
    """Choose the next prompts by the scores of this run (on-policy runs)."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        """Accept ``"name"``, and one source written without the ``sources`` list."""
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if value.get("heldout") is not None:
            value["heldout"] = _nest(value["heldout"])
        if "sources" in value:
            value["sources"] = [_nest(s) for s in value["sources"]]
            return value
        of_section = {k: value.pop(k) for k in list(value) if k in cls.model_fields}
        return {**of_section, "sources": [_nest(value)]}


def _nest(value: Any) -> Any:
    """Split a flat source mapping into mixture settings and the dataset component's own options."""
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict) or "source" in value:
        return value
    fields = set(SourceSettings.model_fields) - {"source"}
    return {
        **{k: v for k, v in value.items() if k in fields},
        "source": spell_dataset({k: v for k, v in value.items() if k not in fields}),
    }


def source_options(dataset: Any) -> list[dict[str, Any]]:
    """The options of each data set of a section as a user writes it; what is malformed is left out."""
    section = {"name": dataset} if isinstance(dataset, str) else dataset
    if not isinstance(section, dict):
        return []
    listed = section.get("sources", [{k: v for k, v in section.items() if k not in DatasetSettings.model_fields}])
    nested = [_nest(value) for value in listed] if isinstance(listed, list | tuple) else []
    return [value["source"] for value in nested if isinstance(value, dict) and isinstance(value.get("source"), dict)]


def unfiltered(source: Any) -> Any:
    """The data set inside row filters: ``of`` of a component, or of its options."""
    of = source.get("of") if isinstance(source, Mapping) else getattr(source, "of", None)
    return source if of is None else unfiltered(of)


def spell_dataset(options: dict[str, Any]) -> dict[str, Any]:
    """Expand the shorthands of ``--dataset``: ``pocket/...``, a file or folder, or a hub id. An installed data set is
    meant before a file or folder of its name. ``where`` filters the rows of any (``rlhf-plugin-verifiers``).
    """
    if "where" in options:
        rest = spell_dataset({key: value for key, value in options.items() if key != "where"})
        return {"name": "where", "of": rest, "expression": options["where"]} if options["where"] else rest
    name = str(options.get("name", ""))
    if name.startswith("pocket/"):
        return {**options, "name": "pocket", "subset": name.split("/", 1)[1]}
    if name.endswith((".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")):
        return {**options, "name": "parquet" if name.endswith(".parquet") else "jsonl", "path": name}
    installed = any(name in (entry.name, entry.qualified) for entry in entries_of("rlhf.dataset"))
    if not installed and ("/" in name or TABLE.search(name) or os.path.exists(os.path.expanduser(name))):
        return {**options, "name": "hub", "path": name}
    return options
