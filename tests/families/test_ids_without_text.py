"""Ids that no token of the tokenizer has are never sampled, and no log-probability counts them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.layers.chunked_head import head_logprobs, logits_logprobs
from rlhf_core.models.layers.trunk_and_head import mask_ids_without_text
from rlhf_core.models.load import load_policy
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_core.training.forward import completion_logprobs, structure
from rlhf_core.types.errors import ModelError
from rlhf_plugin_native.engine import NativeEngine, ids_without_text
from tests.families.built import FAMILIES

EXTRA = {"vocab_size": 300}
NAMELESS = [*range(259, 300)]


def likely(model: Any) -> None:
    """Make the ids without a text all but certain to be sampled, were they not masked."""
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight[259:] = 40 * head.weight[:41]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampler_and_trainer_leave_them_out_alike(
    family: str, temperature: float, saved: Callable[..., Path], tokenizer: Any
) -> None:
    folder = saved(family, **EXTRA)
    policy = load_policy(ModelConfig(path=str(folder)))
    likely(policy.model)
    assert ids_without_text(policy.model) == NAMELESS
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context)
    requests = [RolloutRequest(f"p{n}", (1, 2, 3 + n), 0, n) for n in range(6)]
    rollouts = engine.generate(requests, SamplingParams(max_tokens=6, temperature=temperature), 0)
    assert all(i < 259 for rollout in rollouts for i in rollout.completion_ids)
    for options in ({}, {"chunked": False}, {"packed": False, "shared_prefix": False}):
        with torch.no_grad():
            trained = completion_logprobs(
                policy.model,
                [r.prompt_ids for r in rollouts],
                [r.completion_ids for r in rollouts],
                temperature=temperature,
                entropy=True,
                **options,
            )
        for rollout, row_T in zip(rollouts, trained.logprobs_BT):
            sampled_T = torch.as_tensor(rollout.logprobs_T)
            assert torch.allclose(row_T[: len(sampled_T)], sampled_T, atol=2e-4)
        assert trained.entropy_BT is not None
        assert trained.entropy_BT.isfinite().all()


@pytest.mark.parametrize("family", ["llama", "gemma2", "phi"])
def test_gradients_are_those_of_a_smaller_vocabulary(family: str, saved: Callable[..., Path]) -> None:
    """phi has a bias in its head; gemma2 caps logits after it."""
    masked = load_policy(ModelConfig(path=str(saved(family, **EXTRA)))).model
    plain = copy.deepcopy(masked)
    plain.resize_token_embeddings(259)
    for module in plain.modules():
        module._buffers.pop("rlhf_without_text", None)
        module._forward_hooks.clear()
    grads: list[dict[str, torch.Tensor]] = []
    for model in (masked, plain):
        out = completion_logprobs(model, [(1, 2)], [(3, 4, 5)], entropy=True)
        assert out.entropy_BT is not None
        (out.logprobs_BT.sum() + 0.3 * out.entropy_BT.sum()).backward()
        grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    for name, want in grads[1].items():
        got = grads[0][name][:259] if want.shape[0] == 259 else grads[0][name]
        assert torch.allclose(got, want, atol=1e-5), name
        assert not grads[0][name][259:].any() or want.shape[0] != 259


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(2, 40),
    named=st.sets(st.integers(0, 39), min_size=1),
    bias=st.booleans(),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
)
def test_any_set_of_ids(rows: int, named: set[int], bias: bool, temperature: float) -> None:
    """The head with masked rows gives the log-probabilities of one that has the named rows alone."""
    named = {i for i in named if i < rows} or {0}
    torch.manual_seed(rows)
    head, hidden_NH = torch.nn.Linear(8, rows, bias=bias), torch.randn(5, 8, requires_grad=True)
    kept = sorted(named)
    targets_N = torch.tensor([kept[n % len(kept)] for n in range(5)])
    small_N = torch.tensor([n % len(kept) for n in range(5)])
    want_N, entropy_N = logits_logprobs(head(hidden_NH)[:, kept], small_N, temperature=temperature, entropy=True)
    holder = _Holder(head)
    mask_ids_without_text(holder, named)
    for got_N, got_entropy_N in (
        head_logprobs(hidden_NH, head, targets_N, temperature=temperature, entropy=True),
        logits_logprobs(head(hidden_NH), targets_N, temperature=temperature, entropy=True),
    ):
        assert torch.allclose(got_N, want_N, atol=1e-5)
        assert entropy_N is not None
        assert got_entropy_N is not None
        assert torch.allclose(got_entropy_N, entropy_N, atol=1e-5)


class _Holder(torch.nn.Module):
    """As little of a causal language model as is asked for."""

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.head = head
        self.config = type("Config", (), {"get_text_config": lambda _: type("Text", (), {"vocab_size": 2})})()

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.head

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        return type("Output", (), {"logits": self.head(torch.zeros(*input_ids.shape, 8))})()


def test_the_folder_that_is_written_has_nothing_of_it(saved: Callable[..., Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = saved("llama", **EXTRA)
    policy = load_policy(ModelConfig(path=str(folder)))
    policy.save(tmp_path / "again")
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_adapters_on_a_masked_head(saved: Callable[..., Path]) -> None:
    lora = LoraSettings(r=2, target_modules=("lm_head",))
    model = load_policy(ModelConfig(path=str(saved("llama", tie_word_embeddings=False, **EXTRA)), lora=lora)).model
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[1, 2]])).logits
    assert logits[..., 259:].isneginf().all()
    assert logits[..., :259].isfinite().all()
    assert structure(model).split


def test_a_model_without_weights_yet_is_masked_too(saved: Callable[..., Path]) -> None:
    from rlhf_core.models.slices import has_meta_weights, read_weights

    folder = saved("llama", **EXTRA)
    model = load_policy(ModelConfig(path=str(folder)), weights=False).model
    assert has_meta_weights(model)
    read_weights(model, torch.device("cpu"))
    with torch.no_grad():
        want = load_policy(ModelConfig(path=str(folder))).model(input_ids=torch.tensor([[1, 2]])).logits
        assert torch.equal(model(input_ids=torch.tensor([[1, 2]])).logits, want)
    assert want[..., 259:].isneginf().all()


def test_a_tokenizer_without_spare_rows_changes_nothing(saved: Callable[..., Path]) -> None:
    model = load_policy(ModelConfig(path=str(saved("llama")))).model
    assert ids_without_text(model) == []
    assert not any(m._forward_hooks for m in model.modules())


def test_an_id_past_the_embedding_is_refused(saved: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match="has 259 tokens but the model embeds only 258"):
        load_policy(ModelConfig(path=str(saved("llama", vocab_size=258))))
