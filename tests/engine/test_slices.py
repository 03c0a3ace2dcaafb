"""A model that is built without weights and read afterwards is the model that is loaded whole."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.save import load_weights, save_model
from rlhf_core.models.slices import has_meta_weights, read_weights, stored_in, weight_files
from rlhf_core.training.weight_sync import SamplerPolicy
from rlhf_core.types.errors import ModelError

CPU = torch.device("cpu")


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**model.state_dict(), **{f"buffer {k}": v for k, v in model.named_buffers()}}


def assert_equal(one: torch.nn.Module, two: torch.nn.Module) -> None:
    a, b = state(one), state(two)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("lora", [None, LoraSettings(r=2)])
def test_weights_are_those_of_whole_loading(lora: LoraSettings | None) -> None:
    config = ModelConfig(path="pocket", lora=lora)
    torch.manual_seed(3)
    whole = load_policy(config).model
    torch.manual_seed(3)
    later = load_policy(config, weights=False).model
    assert has_meta_weights(later)
    reference = copy.deepcopy(later)
    for model in (later, reference):
        read_weights(model, CPU)
        assert not has_meta_weights(model)
        assert_equal(whole, model)
        assert [p.requires_grad for p in whole.parameters()] == [p.requires_grad for p in model.parameters()]


def test_a_checkpoint_is_read_in_place_of_the_model(tmp_path: Path) -> None:
    loaded = load_policy(ModelConfig(path="pocket"))
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(0.5)
    save_model(loaded.model, loaded.tokenizer, tmp_path)
    later = load_policy(ModelConfig(path="pocket"), weights=False).model
    load_weights(later, tmp_path)
    read_weights(later, CPU)
    assert_equal(loaded.model, later)


def test_files_beside_the_models_own_are_not_read(tmp_path: Path) -> None:
    loaded = load_policy(ModelConfig(path="pocket"))
    save_model(loaded.model, loaded.tokenizer, tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({k: v * 2 for k, v in load_file(str(file)).items()}, str(tmp_path / "model_other.safetensors"))
    assert weight_files(tmp_path) == [file]
    later = load_policy(ModelConfig(path=str(tmp_path)), weights=False).model
    read_weights(later, CPU)
    assert_equal(loaded.model, later)
    assert {stored.file for stored in stored_in(weight_files(tmp_path)).values()} == {str(file)}


def test_a_hub_model_is_read_from_its_local_copy(hub_copy: str) -> None:
    config = ModelConfig(path=hub_copy)
    whole, later = load_policy(config).model, load_policy(config, weights=False).model
    assert has_meta_weights(later)
    assert later.name_or_path == whole.name_or_path == hub_copy
    read_weights(later, CPU)
    assert_equal(whole, later)


def test_a_hub_model_that_is_nowhere_is_refused(hub_copy: str) -> None:
    with pytest.raises(ModelError, match="no local copy of a model of that name"):
        load_policy(ModelConfig(path=f"{hub_copy}-other"), weights=False)


def test_a_weight_of_another_shape_is_refused(tmp_path: Path) -> None:
    """A rank would read its rows of it and not know."""
    loaded = load_policy(ModelConfig(path="pocket"))
    save_model(loaded.model, loaded.tokenizer, tmp_path)
    file = str(tmp_path / "model.safetensors")
    stored = load_file(file)
    name = next(k for k, v in stored.items() if v.ndim == 1)
    save_file({**stored, name: torch.cat([stored[name]] * 2)}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"the weight '{name}' does not fit the model"):
        load_policy(ModelConfig(path=str(tmp_path)), weights=False)


def test_a_weight_that_is_nowhere_is_named() -> None:
    with torch.device("meta"):
        layer = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match="no file holds the weight 'weight' of a Linear"):
        read_weights(layer, CPU)


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (3, 2, 2), (3, 0)])
def test_elements_are_those_of_the_weight_laid_end_to_end(tmp_path: Path, shape: tuple[int, ...]) -> None:
    whole = torch.randn(shape)
    file = tmp_path / "one.safetensors"
    save_file({"weight": whole}, str(file))
    stored, flat = stored_in([file])["weight"], whole.reshape(-1)
    for start in range(flat.numel() + 1):
        for stop in range(start, flat.numel() + 1):
            assert torch.equal(stored.elements(start, stop), flat[start:stop])


def test_tied_weights_that_the_model_stores_twice_are_read_from_the_checkpoint(tmp_path: Path) -> None:
    loaded = load_policy(ModelConfig(path="pocket"))
    for folder in ("model", "checkpoint"):
        save_model(loaded.model, loaded.tokenizer, tmp_path / folder)
        with torch.no_grad():
            for parameter in loaded.model.parameters():
                parameter.mul_(0.5)
    file = tmp_path / "model" / "model.safetensors"
    stored = load_file(str(file))
    missing = set(loaded.model.state_dict()) - set(stored)
    assert missing, "the embedded model's head is its embedding"
    embedding = loaded.model.get_input_embeddings().weight
    (tied,) = (k for k in stored if stored[k].shape == embedding.shape)
    save_file({**stored, **{name: stored[tied].clone() for name in missing}}, str(file), metadata={"format": "pt"})
    later = load_policy(ModelConfig(path=str(tmp_path / "model")), weights=False).model
    load_weights(later, tmp_path / "checkpoint")
    read_weights(later, CPU)
    assert_equal(load_policy(ModelConfig(path=str(tmp_path / "checkpoint"))).model, later)


@pytest.mark.parametrize("lora", [None, LoraSettings(r=2)])
def test_a_sampler_of_a_model_without_weights_takes_new_versions(lora: LoraSettings | None) -> None:
    later = load_policy(ModelConfig(path="pocket", lora=lora), weights=False).model
    sampler = SamplerPolicy(later)
    for model in (later, sampler.model):
        read_weights(model, CPU)
    weights = dict(later.named_parameters())
    version = {name: torch.full_like(weights[name], 9.0) for name in sampler.names}
    sampler.load(version)
    assert version
    held = dict(sampler.model.named_parameters())
    assert all(torch.equal(held[name], tensor) for name, tensor in version.items())
