"""Splits of a data set by name, and slices of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_core.data.datasets import Datasets

Make = Callable[..., Datasets]


@pytest.mark.parametrize(("split", "kept"), [("train[:1]", "a"), ("train[50%:]", "cd"), ("train[:1]+train[3:]", "ad")])
def test_slices_of_a_split(datasets: Make, tmp_path: Path, split: str, kept: str) -> None:
    import datasets as hub

    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "folder" / "train.csv", tmp_path / "one.csv"):
        file.write_text("prompt\na\nb\nc\nd\n")
    hub.DatasetDict({"train": hub.Dataset.from_list([{"prompt": c} for c in "abcd"])}).save_to_disk(tmp_path / "saved")
    (tmp_path / "one.jsonl").write_text("".join(f'{{"prompt": "{c}"}}\n' for c in "abcd"))
    for name in ("folder", "one.csv", "one.jsonl", "saved"):
        loaded = datasets(name="hub", path=str(tmp_path / name), split=split, heldout_fraction=0)
        assert "".join(p.text for p in loaded.prompts("train")) == kept, name


@pytest.mark.parametrize(("part", "kept"), [("", "abcd"), ("[:2]", "ab")])
def test_a_saved_split_may_have_any_name(datasets: Make, tmp_path: Path, part: str, kept: str) -> None:
    import datasets as hub

    rows = hub.Dataset.from_list([{"prompt": c} for c in "abcd"])
    hub.DatasetDict({"train-sft": rows}).save_to_disk(tmp_path / "saved")
    loaded = datasets(name="hub", path=str(tmp_path / "saved"), split=f"train-sft{part}", heldout_fraction=0)
    assert "".join(p.text for p in loaded.prompts("train")) == kept
