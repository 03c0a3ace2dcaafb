"""Rows that were read are kept compressed: as Python objects a row of 100 bytes takes two kilobytes."""

from __future__ import annotations

import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli import open_registry
from rlhf_core.cli.options import resolve_options
from rlhf_core.config import BuildContext
from rlhf_core.data import Datasets
from rlhf_core.data.config import JsonlConfig
from rlhf_core.data.files import JsonSource
from rlhf_core.data.order import PromptOrder
from rlhf_core.data.settings import spell_dataset
from rlhf_core.types.frozen import KEPT, TOGETHER, Packed
from rlhf_core.types.rollouts import Prompt
from rlhf_plugin_hub.dataset_config import BUILDERS
from rlhf_plugin_preflight.datacheck.items import read_items
from scripts.bench._big_inputs import write_prompts

ROWS = 20_000


@pytest.mark.slow
def test_a_row_takes_few_bytes(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", ROWS)
    registry = open_registry()
    names = {"algo": "grpo", "reward": "exact", "model": "pocket", "dataset": str(tmp_path / "prompts.jsonl")}
    ctx = BuildContext(config=resolve_options(registry, (), (), names).config, registry=registry, seed=0)
    tracemalloc.start()
    try:
        datasets = Datasets(ctx.config.dataset, ctx)
        reading = read_items(datasets, ctx)
        order = PromptOrder(datasets.prompts("train"), datasets.weights, seed=0)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(reading.train) + len(reading.heldout) == ROWS
    assert len(order.take(64)) == 64
    assert kept / ROWS < 250


def test_rows_of_a_file_refuse_changes(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", TOGETHER + 1)
    rows: Any = JsonSource(JsonlConfig(path=str(tmp_path / "prompts.jsonl"))).rows("train")
    for row in rows:
        with pytest.raises(TypeError, match="read-only"):
            row["prompt"] = "another"


def test_values_that_cannot_be_pickled_are_kept_as_they_are() -> None:
    values = [lambda n=n: n for n in range(2 * TOGETHER + 1)]
    assert [value() for value in Packed(values)] == list(range(len(values)))


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each block that is unpacked."""
    sizes: list[int] = []
    decompress = zlib.decompress
    monkeypatch.setattr(zlib, "decompress", lambda packed: sizes.append(len(packed)) or decompress(packed))
    return sizes


def prompts_of(count: int) -> Packed[Prompt]:
    return Packed(Prompt(f"p{n}", ({"role": "user", "content": f"{n}?"},), None, "a") for n in range(count))


def test_a_prompt_that_is_drawn_is_unpacked_once(unpacked: list[int]) -> None:
    order = PromptOrder(prompts_of(1100), {"a": 1.0}, seed=0)
    unpacked.clear()
    for _ in range(3):
        assert len({prompt.id for prompt in order.take(1024)}) == 1024
    assert len(unpacked) <= 3 * 1100


def test_sources_that_take_turns_are_unpacked_once(unpacked: list[int]) -> None:
    rows = prompts_of(KEPT * TOGETHER)
    for n in range(TOGETHER):
        for source in range(KEPT):
            assert rows[source * TOGETHER + n].id == f"p{source * TOGETHER + n}"
    assert len(unpacked) == KEPT


@pytest.mark.parametrize("ending", BUILDERS)
def test_every_kind_of_file_that_the_hub_s_reader_knows_is_known_by_its_name(ending: str) -> None:
    assert spell_dataset({"name": f"no-such-file.{ending}"})["path"] == f"no-such-file.{ending}"
