"""The last token's hidden state: with and without padding, with and without common beginnings, it is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from rlhf_core.models import ModelConfig, last_token
from rlhf_core.models.layers.packing import NAME
from rlhf_core.models.load import load_policy

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
}
SHARED = tuple(range(3, 20))
ROWS = [(*SHARED, 7, 8), (*SHARED, 9), (5,), (*SHARED, 7), (30, 31, 32), (*SHARED[:6], 40, 41, 42)]


def trunk(kind: str = "llama", **options: Any) -> Any:
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(kind, **{**SIZES, **options})).eval()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
        ("mistral", {"sliding_window": 6}),
    ],
)
def test_without_padding_values_and_gradients_are_those_of_single_sequences(kind: str, options: Any) -> None:
    model = trunk(kind, **options)
    alone = torch.cat([last_token.padded_last(model, [row]) for row in ROWS])
    head = torch.randn(len(ROWS), 32)
    wanted = torch.autograd.grad((alone * head).sum(), list(model.parameters()), allow_unused=True)
    assert last_token.can_pack(model)
    assert model.config._attn_implementation == NAME
    packed = last_token.last_token_hidden(model, ROWS)
    assert torch.allclose(packed, alone, atol=1e-5)
    gradients = torch.autograd.grad((packed * head).sum(), list(model.parameters()), allow_unused=True)
    for ours, theirs in zip(gradients, wanted):
        assert ours is None or float((ours - theirs).abs().max()) <= 1e-5 * max(1.0, float(theirs.abs().max()))
    assert torch.allclose(last_token.last_token_hidden(model, ROWS, without_padding=False), alone, atol=1e-5)


def test_a_trunk_that_looks_both_ways_is_padded() -> None:
    model = trunk("bert")
    before = model.config._attn_implementation
    assert not last_token.can_pack(model)
    assert model.config._attn_implementation == before
    assert torch.allclose(
        last_token.last_token_hidden(model, ROWS)[2], last_token.padded_last(model, [ROWS[2]])[0], atol=1e-5
    )


def test_common_beginnings_are_computed_once() -> None:
    model, seen = load_policy(ModelConfig()).model.model, []
    last_token.can_pack(model)
    model.embed_tokens.register_forward_hook(lambda module, args, out: seen.append(args[0].numel()))
    last_token.last_token_hidden(model, [(*SHARED, 7, 8), (*SHARED, 9)])
    assert seen == [len(SHARED) + 3]


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([(1, 2, 3, 4, 5, 6), (9, 9), (1, 2, 3, 4, 7)], [4, 0, 4]),
        ([(1, 2, 3, 4, 5), (1, 2, 3, 4, 5)], [4, 4]),  # the last token of each stays its own
        ([(1, 2, 3), (1, 2, 4)], [0, 0]),  # not worth it
        ([(7,)], [0]),
        # a system prompt that all share does not break up pairs that share much more
        (
            [
                (1, 2, 3, 4, *range(10, 30), 5),
                (1, 2, 3, 4, *range(10, 30), 6),
                (1, 2, 3, 4, *range(40, 60), 5),
                (1, 2, 3, 4, *range(40, 60), 6),
            ],
            [24] * 4,
        ),
        # completions of one prompt that happen to begin alike stay one group
        ([(*SHARED, 7, 1), (*SHARED, 7, 2), (*SHARED, 8, 1), (*SHARED, 9)], [17] * 4),
    ],
)
def test_what_is_shared(rows: Any, wanted: list[int]) -> None:
    assert last_token.common_beginnings(rows) == wanted


def test_attention_that_somebody_else_sets_is_respected() -> None:
    model = trunk()
    wanted = last_token.last_token_hidden(model, ROWS)
    model.set_attn_implementation("sdpa")
    assert not last_token.can_pack(model)
    assert torch.allclose(last_token.last_token_hidden(model, ROWS), wanted, atol=1e-5)


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        last_token.last_token_hidden(trunk(), [(1, 2), ()])
