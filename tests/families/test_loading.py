"""What loading a model says of it, whatever its architecture."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import explain_failure, load_policy
from rlhf_core.models.sources import Source
from rlhf_core.training.forward import completion_logprobs
from rlhf_core.types.errors import ModelError
from tests.families.built import FAMILIES

UNFUSED = ("gemma2", "gpt_oss", "bloom", "gpt_neo", "mamba", "gptj")
DROPOUT = {
    "opt": {"dropout": 0.3, "attention_dropout": 0.3, "layerdrop": 0.5},
    "gpt2": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3},
    "falcon": {"hidden_dropout": 0.3, "attention_dropout": 0.3},
    "bloom": {"hidden_dropout": 0.3, "attention_dropout": 0.3},
    "gpt_neo": {"resid_dropout": 0.3, "embed_dropout": 0.3, "attention_dropout": 0.3},
    "gptj": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3},
    "phi": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attention_dropout": 0.3},
    "gpt_neox": {"hidden_dropout": 0.3, "attention_dropout": 0.3},
    "mixtral": {"attention_dropout": 0.3, "router_jitter_noise": 0.3},
    "llama": {"attention_dropout": 0.3},
}


def loss_and_gradient(folder: Path, **settings: Any) -> tuple[float, torch.Tensor, int]:
    """Of one completion under a model as loaded, without the optimisations of the forward; how often a layer ran."""
    model = load_policy(ModelConfig(path=str(folder), **settings)).model
    calls: list[int] = []
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    next(m for m in layers[0].modules() if isinstance(m, torch.nn.LayerNorm | torch.nn.Linear)).register_forward_hook(
        lambda *_: calls.append(1)
    )
    loss = -completion_logprobs(model, [(1, 2, 3)], [(4, 5, 6, 7)], packed=False).logprobs_BT.sum()
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return loss.item(), gradient, len(calls)


@pytest.mark.parametrize("family", DROPOUT)
def test_gradient_checkpointing_changes_nothing(family: str, saved: Callable[..., Path]) -> None:
    folder = saved(family, **DROPOUT[family])
    loss, gradient, calls = loss_and_gradient(folder)
    again, checkpointed, more_calls = loss_and_gradient(folder, gradient_checkpointing=True)
    assert more_calls == calls + 1, "the layer should run again in the backward pass"
    assert again == pytest.approx(loss, rel=1e-6)
    assert torch.allclose(checkpointed, gradient, atol=1e-5)


def test_layers_that_behave_otherwise_in_training_are_refused(
    saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    forward = LlamaDecoderLayer.forward
    monkeypatch.setattr(LlamaDecoderLayer, "forward", lambda *a, **k: forward(*a, **k) + torch.rand(()))
    with pytest.raises(ModelError, match="gradient checkpointing changes what LlamaForCausalLM computes"):
        load_policy(ModelConfig(path=str(saved("llama")), gradient_checkpointing=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_fused_attention_gets_eager(
    family: str, saved: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(family)
    loaded = load_policy(ModelConfig(path=str(folder)))
    told = [r.getMessage() for r in caplog.records if "model.attention=eager is taken" in r.getMessage()]
    assert len(told) == (family in UNFUSED)
    if told:
        assert type(loaded.model).__name__ in told[0]
        caplog.clear()
        load_policy(ModelConfig(path=str(folder), attention="eager"))
        assert "is taken" not in caplog.text


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ValueError("X does not support an attention implementation through sdpa"), "model.attention=eager"),
        (
            ValueError("The checkpoint has model type `novel` but Transformers does not recognize this"),
            "pip install -U",
        ),
        (ValueError("Unrecognized configuration class <class 'VitConfig'> for this kind of AutoModel"), "text alone"),
        (ImportError("This tokenizer requires sentencepiece"), "install the package"),
        (MemoryError(), "model.dtype=bfloat16"),
        (RuntimeError("size mismatch for lm_head.weight"), "belong to config.json"),
    ],
)
def test_the_remedy_follows_the_error(error: Exception, remedy: str, local: bool) -> None:
    for what in ("model", "tokenizer"):
        told = explain_failure(error, ModelConfig(path="org/name"), Source("/x", local=local), what)
        assert remedy in told.fix
        assert "complete causal" not in str(told)
        assert "no folder" not in str(told)


def test_unused_settings_of_a_generation_config_are_named_once(
    saved: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved("llama")
    asked = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "do_sample": True}
    asked |= {"bad_words_ids": [[5]], "forced_bos_token_id": 7}
    (folder / "generation_config.json").write_text(json.dumps({**asked, "eos_token_id": [257, 258], "pad_token_id": 0}))
    load_policy(ModelConfig(path=str(folder)))
    told = [r.getMessage() for r in caplog.records if "generation_config" in r.getMessage()]
    assert len(told) == 1
    for name, value in asked.items():
        assert (f"{name} {value}" in told[0]) == (name != "do_sample")
    assert not any(f"{name}_token_id 0" in told[0] or f"{name}_token_id [" in told[0] for name in ("eos", "pad"))


def test_nothing_is_said_of_a_generation_config_without_settings(
    saved: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    load_policy(ModelConfig(path=str(saved("llama"))))
    assert caplog.text == ""
