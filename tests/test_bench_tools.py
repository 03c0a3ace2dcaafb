"""Both sides of the tool-loop benchmark play the same episodes, and compute the same from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench._work import BUDGET, TOOL_CASES, is_call


def test_every_turn_but_the_last_is_a_call_and_fits_the_budget() -> None:
    for work in TOOL_CASES.values():
        assert work.rows % work.micro_batch == 0, "the other side accumulates whole micro-batches"
        low, high = work.tokens
        for lengths in work.lengths():
            assert [is_call(n) for n in lengths] == [True] * (len(lengths) - 1) + [False]
            assert work.turns[0] <= len(lengths) <= work.turns[1]
            assert all(low <= n <= high + 1 for n in lengths)
            assert sum(lengths) + 100 * len(lengths) < BUDGET + 100


@pytest.mark.slow
def test_loss_and_gradient_are_those_of_trls_tool_loop(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_tokenizer
    from scripts.bench._work import with_template
    from scripts.bench.tool_loop import TOLERANCE, same_numbers

    tokenizer = load_tokenizer(ModelConfig(path="pocket"))
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, **sizes, **ends)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "bare")
    tokenizer.save_pretrained(tmp_path / "bare")
    same = same_numbers(TOOL_CASES["small"], with_template(tmp_path / "bare", tmp_path / "model"))
    assert same["prompts_are_equal"]
    assert same["results_are_equal"]
    assert same["loss_gap"] < TOLERANCE
    assert same["gradient_gap"] < TOLERANCE
    assert same["gradient_norm"] > 0
