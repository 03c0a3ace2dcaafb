"""The compiled step of one row: it samples what the plain one samples, or says that it cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.config import ConfigError
from rlhf_core.models.precision import set_precision
from rlhf_core.types.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_native import row_step
from rlhf_plugin_native.decode_step import WORTH_TOKENS
from rlhf_plugin_native.engine import NativeEngine

from .test_compiled_attention import from_trunk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"),
]
SAMPLING = SamplingParams(max_tokens=WORTH_TOKENS + 60, temperature=0.8)
REQUEST = RolloutRequest("0", (3, 1, 4, 1, 5), 0, seed=7)


def sampled(model: Any, tokenizer: Any, compile: bool, monkeypatch: pytest.MonkeyPatch) -> Rollout:
    """What the engine samples; fails if the compiled step is not used as ``compile`` says."""
    with monkeypatch.context() as patch:
        calls: list[int] = []
        step = row_step.RowStep.__call__
        patch.setattr(row_step.RowStep, "__call__", lambda *args: (calls.append(1), step(*args))[1])
        rollout = NativeEngine(model, tokenizer, 128, compile=compile).generate([REQUEST], SAMPLING, 0)[0]
        assert bool(calls) == compile
    return rollout


def compare(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Rollout:
    got, want = (sampled(model, tokenizer, compile, monkeypatch) for compile in (True, False))
    assert got.completion_ids == want.completion_ids
    np.testing.assert_allclose(got.logprobs_T, want.logprobs_T, atol=1e-4)
    return got


def test_it_samples_what_the_plain_step_samples(
    new_model: Callable[..., Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grouped keys and biases; then with other weights, and with an adapter."""
    from rlhf_core.models.config import LoraSettings
    from rlhf_core.models.save import add_lora

    torch.manual_seed(0)
    model = new_model("llama", attention_bias=True, mlp_bias=True)
    first = compare(model, tokenizer, monkeypatch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    second = compare(model, tokenizer, monkeypatch)
    assert first.completion_ids != second.completion_ids, "the weights are the present ones"
    adapted = add_lora(model, LoraSettings(r=4)).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    assert compare(adapted, tokenizer, monkeypatch).completion_ids != second.completion_ids


def test_mixed_precision_rounds_where_the_model_does(
    new_model: Callable[..., Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logprobs are about as near to those of a bfloat16 trunk as those of the plain step."""
    torch.manual_seed(0)
    model = new_model("llama", num_hidden_layers=6)
    set_precision(model, "bf16")
    far = [from_trunk(model, [sampled(model, tokenizer, compile, monkeypatch)]) for compile in (True, False)]
    assert far[0] < 1.6 * far[1] < 0.04


def test_no_compiler_is_an_error(
    new_model: Callable[..., Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    with (
        torch._inductor.config.patch(
            {"cpp.cxx": (None, str(tmp_path / "no-such-compiler")), "force_disable_caches": True}
        ),
        pytest.raises(ConfigError, match="decoding step cannot be compiled") as error,
    ):
        sampled(new_model("llama"), tokenizer, True, monkeypatch)
    assert "leave rollout.compile out" in str(error.value)


@pytest.mark.parametrize("model", ["gpt2", "gemma2"], indirect=True)
def test_a_model_of_another_layout_is_named(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        NativeEngine(model, tokenizer, 64, compile=True).generate([REQUEST], SamplingParams(max_tokens=20), 0)
    assert "rollout.compile has no effect on" in caplog.text
