"""Models whose experts transformers fuses: their weights reach vLLM under the names of a checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlhf_core.models import LoadedModel, ModelConfig, ModelError, load_policy
from rlhf_core.models.config import LoraSettings
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_plugin_vllm.sync_folder import make_sync_folder
from rlhf_plugin_vllm.weight_files import WeightFiles
from rlhf_testing import policy_context
from tests.families.conftest import saved as saved
from tests.families.conftest import tokenizer as tokenizer

from .conftest import sent_by_group, weights_of
from .test_real_vllm import PYTHON, SERVER, trainer_gap

SIZES = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "moe_intermediate_size": 64}


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "olmoe", "llama", "granitemoe"])
def test_a_version_has_the_checkpoints_names_and_is_read_back_as_the_policys(
    family: str, saved: Callable[..., Path]
) -> None:
    folder = saved(family)
    model = load_policy(ModelConfig(path=str(folder))).model
    files = WeightFiles(model, None, bucket_mib=1)
    published = files.write(0, weights_of(model))
    written: dict[str, torch.Tensor] = {}
    for file in published.path.glob("*.safetensors"):
        written |= load_file(file)
    checkpoint = load_file(folder / "model.safetensors")
    assert written.keys() == checkpoint.keys()
    assert all(torch.equal(written[name], checkpoint[name]) for name in checkpoint)
    read = files.read(published)
    parameters = dict(model.named_parameters())
    assert set(read) == set(parameters)
    assert all(torch.equal(read[name], parameters[name]) for name in parameters)
    assert "nothing" not in read
    files.close()


def adapted(folder: Path, **more: Any) -> LoadedModel:
    """A Mixtral or Qwen3-MoE with adapters of its experts and of its attention."""
    lora = LoraSettings(r=4, target_modules=("w1", "w2", "w3", "gate_proj", "up_proj", "down_proj", "q_proj"))
    return load_policy(ModelConfig(path=str(folder), lora=lora, prompt_format="raw", **more))


def move(model: Any, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(0.05 * torch.randn_like(parameter))


@pytest.mark.parametrize("more", [{}, {"quantize": "nf4"}], ids=["float32", "nf4"])
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_adapters_of_experts_are_folded_into_what_is_sent_and_read_back_as_trained(
    family: str, more: dict[str, Any], saved: Callable[..., Path], tmp_path: Path
) -> None:
    if more:
        pytest.importorskip("bitsandbytes")
    policy = adapted(saved(family, **SIZES), **more)
    move(policy.model, 1)
    files = WeightFiles(policy.model, None, bucket_mib=1)
    assert files.rank == 0, "a server needs no room for adapters"
    published = files.write(0, weights_of(policy.model))
    policy.save(tmp_path / "final", merge=True)
    final, written = load_file(tmp_path / "final" / "model.safetensors"), dict[str, torch.Tensor]()
    for file in published.path.glob("*.safetensors"):
        written |= load_file(file)
    assert written.keys() == final.keys()
    assert all(torch.equal(written[name], final[name]) for name in final)
    read, trained = files.read(published), weights_of(policy.model)
    assert set(read) == set(trained)
    assert all(torch.equal(read[name], trained[name]) for name in trained)
    files.close()


def test_adapters_of_experts_are_refused_where_ranks_divide_the_policy(saved: Callable[..., Path]) -> None:
    folders = make_sync_folder(None, shared=True)
    with pytest.raises(ModelError, match="adapters of fused experts"):
        WeightFiles(adapted(saved("mixtral", **SIZES)).model, None, folders=folders)
    folders.remove()


def test_a_model_that_is_not_cut_weight_by_weight_is_refused(
    saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlhf_plugin_vllm import checkpoint_names

    def reverted(self: Any, weights: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {f"of-{len(weights)}": SimpleNamespace()}

    monkeypatch.setattr(checkpoint_names.CheckpointNames, "_reverted", reverted)
    with pytest.raises(ModelError, match="cannot be sent to vLLM"):
        WeightFiles(load_policy(ModelConfig(path=str(saved("mixtral")))).model, None)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not PYTHON, reason="RLHF_VLLM_PYTHON names no interpreter of an environment with vLLM")
@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_the_real_vllm_has_the_weights_of_each_version(family: str, kind: str, saved: Callable[..., Path]) -> None:
    folder = saved(family, **SIZES)
    policy = adapted(folder) if kind == "lora" else load_policy(ModelConfig(path=str(folder), prompt_format="raw"))
    engine = VllmEngine(VllmConfig(**SERVER), policy_context().with_(policy=policy))
    try:
        for version in range(2):  # one from files, one by gloo
            with sent_by_group(engine) if version else contextlib.nullcontext():
                engine.update_weights(version, weights_of(policy.model))
            requests = [RolloutRequest(f"p{n}", (1, 2, 3 + n), 0, n) for n in range(4)]
            rollouts = engine.generate(requests, SamplingParams(max_tokens=8), version)
            assert trainer_gap(policy.model, rollouts, 1.0) < 1e-4
            move(policy.model, version)
    finally:
        engine.close()
