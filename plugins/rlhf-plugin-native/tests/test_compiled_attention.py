"""The compiled attention of several rows equals that of torch; the engine samples alike with it, or does not use it."""

from __future__ import annotations

import logging
import platform
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rlhf_core.config import ConfigError
from rlhf_core.models.precision import set_precision
from rlhf_core.types.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_native import compiled_attention as compiled
from rlhf_plugin_native.decode_step import WORTH_TOKENS
from rlhf_plugin_native.engine import NativeEngine

pytestmark = [
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"),
    pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("g++"), reason="it is compiled on x86"),
]
REQUESTS = [RolloutRequest(str(i), tuple(range(1, 2 + 3 * (i // 3))), i % 3, seed=i) for i in range(9)]
SAMPLING = SamplingParams(max_tokens=WORTH_TOKENS + 60, temperature=0.8)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "heads", "group", "width", "length"), [(5, 3, 3, 64, 70), (2, 2, 1, 16, 1), (3, 1, 4, 24, 1500)]
)
def test_it_equals_torchs(
    rows: int, heads: int, group: int, width: int, length: int, dtype: torch.dtype, masked: bool
) -> None:
    """Keys and values are a part of a larger buffer, as those of a cache are; some scores are far from the others."""
    torch.manual_seed(0)
    q_BKGD = 8 * torch.randn(rows, heads + 1, group, width)[:, 1:].to(dtype)
    keys_BKLD, values_BKLD = (torch.randn(rows, heads, length + 9, width).to(dtype)[:, :, :length] for _ in range(2))
    seen_B11L = torch.rand(rows, 1, 1, length) < 0.5
    seen_B11L[..., -1] = True
    mask = seen_B11L if masked else None
    got = compiled.compiled_attention(q_BKGD, keys_BKLD, values_BKLD, attn_mask=mask, scale=0.3)
    exact = (t.double() for t in (q_BKGD, keys_BKLD, values_BKLD))
    want = F.scaled_dot_product_attention(*exact, attn_mask=mask, scale=0.3)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, atol=2e-6 if dtype == torch.float32 else 1e-2, rtol=1e-2)


def sampled(model: Any, tokenizer: Any, compile: bool, monkeypatch: pytest.MonkeyPatch) -> list[Rollout]:
    """What the engine samples; fails if the compiled attention is not used as ``compile`` says."""
    with monkeypatch.context() as patch:
        calls: list[int] = []
        attend = compiled._compiled
        patch.setattr(compiled, "_compiled", lambda *sizes: (calls.append(1), attend(*sizes))[1])
        rollouts = NativeEngine(model, tokenizer, 128, max_concurrent=6, compile=compile).generate(
            REQUESTS, SAMPLING, 0
        )
        assert bool(calls) == compile
    return rollouts


def test_it_samples_what_the_plain_step_samples(
    new_model: Callable[..., Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of several lengths, and requests that enter later."""
    model = new_model("llama")
    rows = (sampled(model, tokenizer, compile, monkeypatch) for compile in (True, False))
    for got, want in zip(*rows, strict=True):
        assert got.completion_ids == want.completion_ids
        np.testing.assert_allclose(got.logprobs_T, want.logprobs_T, atol=1e-4)


def test_mixed_precision_rounds_where_the_model_does(
    new_model: Callable[..., Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logprobs are about as near to those of a bfloat16 trunk as those of the plain step."""
    torch.manual_seed(0)
    model = new_model("llama", num_hidden_layers=6)
    set_precision(model, "bf16")
    far = [from_trunk(model, sampled(model, tokenizer, compile, monkeypatch)) for compile in (True, False)]
    assert far[0] < 1.6 * far[1] < 0.04


def from_trunk(model: Any, rollouts: Sequence[Rollout]) -> float:
    """Mean distance of the engine's logprobs from those that training computes."""
    from rlhf_core.training.forward import completion_logprobs

    far: list[float] = []
    for rollout in rollouts:
        with torch.no_grad():
            out = completion_logprobs(model, [rollout.prompt_ids], [rollout.completion_ids], temperature=0.8)
        far += np.abs(rollout.logprobs_T - out.logprobs_BT[0].numpy()).tolist()
    return float(np.mean(far))


def test_no_compiler_is_an_error(
    new_model: Callable[..., Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    compiled._compiled.cache_clear()
    engine = NativeEngine(new_model("llama"), tokenizer, 128, compile=True)
    with pytest.raises(ConfigError, match="decoding step cannot be compiled") as error:
        engine.generate(REQUESTS, SAMPLING, 0)
    assert "no-such-compiler" in str(error.value)


def test_a_model_of_another_layout_is_named_once(
    new_model: Callable[..., Any], tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = NativeEngine(new_model("gpt2"), tokenizer, 128, compile=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            engine.generate(REQUESTS, SAMPLING, 0)
    assert caplog.text.count("rollout.compile has no effect on") == 1


def test_one_that_computes_something_else_is_not_used(
    new_model: Callable[..., Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, right = new_model("llama"), compiled.compiled_attention
    want = sampled(model, tokenizer, False, monkeypatch)
    monkeypatch.setattr(compiled, "compiled_attention", lambda *given, **more: 1.5 * right(*given, **more))
    with caplog.at_level(logging.WARNING):
        got = NativeEngine(model, tokenizer, 128, max_concurrent=6, compile=True).generate(REQUESTS, SAMPLING, 0)
    assert "its compiled attention computes something else" in caplog.text
    assert [r.completion_ids for r in got] == [r.completion_ids for r in want]
