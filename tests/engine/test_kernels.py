"""Each kernel against the plain equivalent beside it; ``rlhf_core/models/layers/__init__.py`` lists the pairs."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from rlhf_core.models import layers as kernels
from rlhf_core.models.layers.chunked_head import head_logprobs, logits_logprobs
from rlhf_core.models.layers.packing import packed_hidden
from rlhf_core.models.layers.prefix_sharing import shared_hidden
from rlhf_core.models.layers.trunk_and_head import (
    has_linear_head,
    padded_hidden,
    padded_logits,
    split_lm_head,
    target_positions,
    trunk_and_head,
)
from rlhf_core.training.forward import structure
from rlhf_plugin_native.decode_step import growing, join_caches, make_cache, plain_step, select_rows

PROMPTS = [(1, 2, 3), (1, 2, 3), (0, 5, 6, 7), (9,)]
COMPLETIONS = [(4,), (5, 0, 0), (7, 8, 9, 1, 2), (3, 3)]
TOKENS = sum(map(len, COMPLETIONS))
models = pytest.mark.parametrize("model", ["llama", "gpt2", "mistral"], indirect=True)


def hidden_gradient(model: Any, hidden_NH: torch.Tensor) -> torch.Tensor:
    """Gradient of the embeddings under an objective in which every entry counts differently."""
    weights = torch.sin(torch.arange(hidden_NH.numel(), dtype=torch.float32)).view_as(hidden_NH)
    return torch.autograd.grad((hidden_NH * weights).sum(), model.get_input_embeddings().weight)[0]


@models
def test_packed_and_shared_hidden_states_are_the_padded_ones(model: Any) -> None:
    assert structure(model).pack
    want = padded_hidden(model, PROMPTS, COMPLETIONS)
    want_gradient = hidden_gradient(model, want)
    results = {
        "packed": packed_hidden(model, PROMPTS, COMPLETIONS, share=False),
        "packed, shared prompts": packed_hidden(model, PROMPTS, COMPLETIONS, share=True),
        "shared prompts": shared_hidden(model, PROMPTS, COMPLETIONS),
    }
    for name, got in results.items():
        assert got.shape == (TOKENS, 32), name
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, msg=name)
        torch.testing.assert_close(hidden_gradient(model, got), want_gradient, rtol=1e-4, atol=1e-4, msg=name)


@models
def test_padded_logits_are_those_of_single_sequences(model: Any) -> None:
    got = padded_logits(model, PROMPTS, COMPLETIONS)
    rows = [model(input_ids=torch.tensor([[*p, *c]])).logits[0, len(p) - 1 : -1] for p, c in zip(PROMPTS, COMPLETIONS)]
    torch.testing.assert_close(got, torch.cat(rows), rtol=1e-5, atol=1e-5)
    assert target_positions(PROMPTS, COMPLETIONS, torch.device("cpu"))[1].tolist()[:4] == [2, 2, 3, 4]


def test_chunked_head_equals_the_plain_one(model: Any) -> None:
    hidden_NH = padded_hidden(model, PROMPTS, COMPLETIONS).detach().requires_grad_()
    targets_N = torch.tensor([t for c in COMPLETIONS for t in c])
    head = trunk_and_head(model).head
    fast = head_logprobs(hidden_NH, head, targets_N, temperature=0.7, entropy=True, chunk_bytes=4 * 320 * 3)
    plain = logits_logprobs(head(hidden_NH), targets_N, temperature=0.7, entropy=True)
    for got, want in zip(fast, plain, strict=True):
        assert got is not None
        assert want is not None
        torch.testing.assert_close(got, want)
        gradients = [torch.autograd.grad(v.sum(), hidden_NH, retain_graph=True)[0] for v in (got, want)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["llama", "gemma2"], indirect=True)
def test_plain_step_continues_a_sequence(model: Any) -> None:
    """With the whole logits of a model that does not split, and token by token of one that does."""
    parts = split_lm_head(model) if has_linear_head(model) else None
    assert (parts is None) == (type(model).__name__ == "Gemma2ForCausalLM")
    ids_BL = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])
    want_BLV, cache = model(input_ids=ids_BL).logits, make_cache(model.config)
    for at in range(4):
        positions_B1 = torch.full((2, 1), at)
        got_BV = plain_step(model, parts, ids_BL[:, at : at + 1], None, positions_B1, cache)
        torch.testing.assert_close(got_BV, want_BLV[:, at], rtol=1e-5, atol=1e-5)


def test_growing_cache_holds_what_transformers_would(model: Any) -> None:
    """Past the capacity of its first block; then with rows dropped and repeated, and with others joined."""
    torch.manual_seed(0)
    ours, theirs = make_cache(model.config), DynamicCache(config=model.config)
    assert growing(ours)
    assert not growing(theirs)
    for length in (3, 1, 80):
        keys, values = torch.randn(2, 3, 2, length, 8).unbind(0)
        for layer in range(2):
            for got, want in zip(ours.update(keys, values, layer), theirs.update(keys, values, layer), strict=True):
                assert torch.equal(got, want)
    assert ours.get_seq_length() == theirs.get_seq_length() == 84
    rows = torch.tensor([2, 0, 2])
    theirs.batch_select_indices(rows)
    assert select_rows(ours, rows, last=10) == 10
    assert torch.equal(ours.layers[1].keys, theirs.layers[1].keys[:, :, -10:])
    other = make_cache(model.config)
    for layer in range(2):
        other.update(*torch.randn(2, 1, 2, 4, 8).unbind(0), layer)
    assert join_caches(ours, other, last=6) == 6
    assert torch.equal(ours.layers[0].keys[:3], theirs.layers[0].keys[:, :, -6:])
    assert torch.equal(ours.layers[0].keys[3:, :, 2:], other.layers[0].keys)
    assert not ours.layers[0].keys[3:, :, :2].any()


def test_kernels_import_nothing_above_them() -> None:
    allowed = ("rlhf_core.models.layers", "rlhf_core.training.functional", "rlhf_core.types.errors")
    for path in Path(kernels.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            above = [m for m in modules if m.startswith("rlhf_core") and not m.startswith(allowed)]
            assert not above, f"{path.name} imports {above}"
