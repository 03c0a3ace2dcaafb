"""Weights are finite when they are read and when they are written; fused attention would hide a NaN in fluent text."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.save import add_lora, load_weights, save_model
from rlhf_core.models.slices import load_named, read_weights, stored_in
from rlhf_core.models.tensor_files import ComputedWeights, is_finite, save_named
from rlhf_core.types.errors import ModelError, TrainingDiverged

ROOT = Path(__file__).parents[2]
NAME = "model.layers.0.self_attn.q_proj.weight"
BAD = (math.nan, math.inf, -math.inf)


@pytest.fixture
def folder(tmp_path: Path, new_model: Any, tokenizer: Any) -> Path:
    save_model(new_model("llama"), tokenizer, tmp_path / "model")
    return tmp_path / "model"


def poison(file: Path, name: str, value: float) -> None:
    weights = load_file(file)
    weights[name].view(-1)[-1] = value
    save_file(weights, file, {"format": "pt"})


FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=16)
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@settings(max_examples=200, deadline=None)
@given(st.lists(FLOATS, max_size=9), st.sampled_from(TYPES))
def test_every_value_counts(values: list[float], dtype: torch.dtype) -> None:
    assert is_finite(torch.tensor(values, dtype=dtype)) == all(map(math.isfinite, values))


def test_types_of_one_byte_and_whole_numbers() -> None:
    assert is_finite(torch.ones(3, dtype=torch.int64))
    assert is_finite(torch.ones(3).to(torch.float8_e4m3fn))
    assert not is_finite(torch.tensor([1.0, math.nan]).to(torch.float8_e4m3fn))
    assert is_finite(torch.empty(3, device="meta"))


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", [NAME, "model.norm.weight", "model.embed_tokens.weight"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_is_refused_with_the_tensor_named(folder: Path, name: str, value: float, dtype: str) -> None:
    poison(folder / "model.safetensors", name, value)
    with pytest.raises(ModelError, match=rf"the weight '{name}' of '.*' holds NaN or infinity"):
        load_policy(ModelConfig.from_settings({"path": str(folder), "dtype": dtype}))


def test_a_model_whose_weights_are_read_in_parts_is_refused_as_well(folder: Path) -> None:
    poison(folder / "model.safetensors", NAME, math.nan)
    model = load_policy(ModelConfig(path=str(folder)), weights=False).model
    with pytest.raises(ModelError, match=f"the weight '{NAME}' of '.*model.safetensors' holds NaN"):
        read_weights(model, torch.device("cpu"))
    part = stored_in([folder / "model.safetensors"])[NAME]
    assert part.elements(0, 4).shape == (4,), "what another rank holds is looked at there"


def test_an_adapter_a_checkpoint_and_a_file_of_some_weights(
    folder: Path, new_model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    adapted = add_lora(load_policy(ModelConfig(path=str(folder))).model, LoraSettings(r=2))
    adapted.trained_from = (str(folder), None)
    save_model(adapted, tokenizer, tmp_path / "final", merge=True)
    file = tmp_path / "final" / "adapter" / "adapter_model.safetensors"
    poison(file, next(iter(load_file(file))), math.inf)
    with pytest.raises(ModelError, match=r"the weight '.*lora_.*' of '.*adapter' holds"):
        load_policy(ModelConfig(path=str(tmp_path / "final" / "adapter")))
    poison(folder / "model.safetensors", NAME, math.nan)
    for load, place in ((load_weights, folder), (load_named, folder / "model.safetensors")):
        with pytest.raises(ModelError, match=f"the weight '{NAME}'"):
            load(new_model("llama"), place)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("merge", [False, True])
def test_weights_that_the_last_update_broke_are_not_saved(
    new_model: Any, tokenizer: Any, tmp_path: Path, lora: bool, merge: bool
) -> None:
    model = add_lora(new_model("llama"), LoraSettings(r=2)) if lora else new_model("llama")
    name, parameter = next((n, p) for n, p in model.named_parameters() if p.requires_grad and "q_proj" in n)
    with torch.no_grad():
        parameter.view(-1)[0] = math.nan
    with pytest.raises(TrainingDiverged, match="holds NaN or infinity, and is not saved"):
        save_model(model, tokenizer, tmp_path / "saved", merge=merge)
    with pytest.raises(TrainingDiverged, match=name):
        save_named(dict(model.named_parameters()), [name], tmp_path / "some.safetensors")


def test_weights_that_are_looked_up_one_by_one_are_looked_at(new_model: Any, tokenizer: Any, tmp_path: Path) -> None:
    model = new_model("llama")
    weights = model.state_dict()
    weights[NAME] = weights[NAME] / 0
    computed = ComputedWeights({n: lambda n=n: weights[n] for n in weights}, weights)
    with pytest.raises(TrainingDiverged, match=NAME):
        save_model(model, tokenizer, tmp_path, computed)


def test_whatever_reads_a_model_looks_at_its_weights() -> None:
    """The gate cannot be passed by: each file that reads weights calls it."""
    passed_by: list[str] = []
    for file in [*ROOT.glob("rlhf_core/**/*.py"), *ROOT.glob("plugins/*/rlhf_plugin_*/**/*.py")]:
        text = file.read_text()
        calls = [ast.unparse(n.func) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
        reads = [c for c in calls if "Model" in c and c.endswith(".from_pretrained")]
        reads += [c for c in calls if c in ("load_file", "torch.load")]
        gates = ("check_finite(", "np.isfinite(")
        if reads and not any(gate in text for gate in gates):
            passed_by.append(file.relative_to(ROOT).as_posix())
    not_weights = {
        "rlhf_core/types/tree.py",  # a checkpoint's state: moments and counts
        "plugins/rlhf-plugin-dpo/rlhf_plugin_dpo/reference.py",  # logprobs
        "plugins/rlhf-plugin-preflight/rlhf_plugin_preflight/device/runs.py",  # compared with a run's
        "plugins/rlhf-plugin-pocket/rlhf_plugin_pocket/build.py",  # has just written it
    }
    assert sorted({*passed_by} - not_weights) == []
