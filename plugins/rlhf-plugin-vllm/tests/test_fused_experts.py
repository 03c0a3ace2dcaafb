"""Models whose experts transformers fuses: their weights reach vLLM under the names of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlhf_core.models import ModelConfig, ModelError, load_policy
from rlhf_core.models.config import LoraSettings
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_plugin_vllm.weight_files import WeightFiles
from rlhf_testing import policy_context
from tests.families.conftest import saved as saved
from tests.families.conftest import tokenizer as tokenizer

from .conftest import weights_of
from .test_real_vllm import PYTHON, SERVER, trainer_gap


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


def test_adapters_of_fused_experts_are_refused(saved: Callable[..., Path]) -> None:
    lora = LoraSettings(r=4, target_modules=("w1", "w2", "w3", "q_proj"))
    model = load_policy(ModelConfig(path=str(saved("mixtral")), lora=lora)).model
    with pytest.raises(ModelError, match="adapters of fused experts"):
        WeightFiles(model, None)


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
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_the_real_vllm_has_the_weights_of_each_version(family: str, saved: Callable[..., Path]) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "moe_intermediate_size": 64}
    policy = load_policy(ModelConfig(path=str(saved(family, **sizes)), prompt_format="raw"))
    ctx = policy_context().with_(policy=policy)
    engine = VllmEngine(VllmConfig(**SERVER), ctx)
    try:
        for version in range(2):
            engine.update_weights(version, weights_of(policy.model))
            requests = [RolloutRequest(f"p{n}", (1, 2, 3 + n), 0, n) for n in range(4)]
            rollouts = engine.generate(requests, SamplingParams(max_tokens=8), version)
            assert trainer_gap(policy.model, rollouts, 1.0) < 1e-4
            torch.manual_seed(version)
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))
    finally:
        engine.close()
