"""Files written tensor by tensor are those of safetensors to the byte, and of transformers where there is one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.save import save_model
from rlhf_core.models.tensor_files import SHARD_BYTES, TYPES, ComputedWeights, entries, write_model_files, write_tensors

TENSORS = {
    **{f"of {name}": torch.arange(5).to(dtype) for dtype, name in TYPES.items()},
    "b": torch.randn(3, 2),
    "a": torch.randn(2, 3).T,
    "größe": torch.tensor(1.5),
    "none": torch.zeros(0, 4),
}


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_is_that_of_the_library(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({k: v.contiguous() for k, v in TENSORS.items()}, tmp_path / "whole", metadata)
    write_tensors(tmp_path / "one by one", entries(TENSORS, reversed(TENSORS)), metadata)
    assert (tmp_path / "one by one").read_bytes() == (tmp_path / "whole").read_bytes()


def written(model: Any, folder: Path, shard_bytes: int) -> dict[str, bytes]:
    """Files of a model's weights."""
    state = model.state_dict()
    folder.mkdir()
    tensors = entries(state, [name for name in state if name not in model.all_tied_weights_keys])
    write_model_files(folder, tensors, shard_bytes)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_single_file_is_that_of_transformers(tmp_path: Path) -> None:
    model = load_policy(ModelConfig(path="pocket")).model
    model.save_pretrained(tmp_path / "whole")
    files = written(model, tmp_path / "parts", SHARD_BYTES)
    assert files == {file.name: file.read_bytes() for file in (tmp_path / "whole").glob("model*")}


@pytest.mark.parametrize("shard_bytes", [600_000, 10_000])
def test_several_files_are_read_by_transformers(tmp_path: Path, shard_bytes: int) -> None:
    model = load_policy(ModelConfig(path="pocket")).model
    folder = tmp_path / "parts"
    files = written(model, folder, shard_bytes)
    model.config.save_pretrained(folder)
    again = type(model).from_pretrained(folder)
    assert {k: v.tolist() for k, v in again.state_dict().items()} == {
        k: v.tolist() for k, v in model.state_dict().items()
    }
    shards = {name: load(data) for name, data in files.items() if name.endswith(".safetensors")}
    assert len(shards) > 1
    sizes = [[v.nbytes for v in shard.values()] for shard in shards.values()]
    assert all(sum(shard) <= shard_bytes or len(shard) == 1 for shard in sizes)
    assert len(shards) <= 1 + sum(map(sum, sizes)) / (shard_bytes / 2), "no file where two would fit into one"
    index = json.loads(files["model.safetensors.index.json"])
    assert index["weight_map"] == {name: file for file, shard in shards.items() for name in shard}
    assert index["metadata"] == {"total_parameters": model.num_parameters(), "total_size": sum(map(sum, sizes))}


def test_what_transformers_converted_it_converts_back(tmp_path: Path) -> None:
    """A model whose files name weights otherwise is written under those names, as one process does."""
    from transformers.core_model_loading import WeightRenaming

    loaded = load_policy(ModelConfig(path="pocket"))
    loaded.model._weight_conversions = [WeightRenaming("model.blocks", "model.layers")]
    save_model(loaded.model, loaded.tokenizer, tmp_path / "whole")
    state = loaded.model.state_dict()
    weights = ComputedWeights({name: partial(state.__getitem__, name) for name in state}, state)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "parts", weights)
    names = load((tmp_path / "whole" / "model.safetensors").read_bytes())
    assert "model.blocks.0.mlp.up_proj.weight" in names
    one, other = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "parts"))
    assert one == other


def test_a_value_of_another_shape_is_refused(tmp_path: Path) -> None:
    (entry,) = entries({"a": torch.zeros(2)}, ["a"])
    object.__setattr__(entry, "value", lambda: torch.zeros(3))
    with pytest.raises(ValueError, match="'a' was to be"):
        write_tensors(tmp_path / "file", [entry])
