"""Drawing: truncation as in transformers, the inverse of the cumulative distribution, stop strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from rlhf_core.types.rollouts import SamplingParams
from rlhf_plugin_native.sampling import BLOCK, StopStrings, draw, truncate, uniforms


def transformers_logprobs(logits: torch.Tensor, p: SamplingParams) -> torch.Tensor:
    scores = TemperatureLogitsWarper(p.temperature)(None, logits) if p.temperature != 1 else logits
    if p.top_k:
        scores = TopKLogitsWarper(p.top_k)(None, scores)
    if p.top_p < 1:
        scores = TopPLogitsWarper(p.top_p)(None, scores)
    if p.min_p:
        scores = MinPLogitsWarper(p.min_p)(None, scores)
    return torch.log_softmax(scores, -1)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 20, "top_p": 0.7},
        {"top_p": 0.9, "min_p": 0.05},
        {"top_k": 7, "top_p": 0.6, "min_p": 0.2, "temperature": 0.7},
        {"top_k": 10_000},
        {"top_p": 1e-9},
    ],
)
def test_truncation_is_that_of_transformers(options: dict[str, float]) -> None:
    params = SamplingParams(**{"temperature": 1.3, **options})  # type: ignore[arg-type]
    logits = torch.randn(64, 301, generator=torch.Generator().manual_seed(0)) * 3
    want = transformers_logprobs(logits, params)
    got = torch.log_softmax(truncate(logits / params.temperature, params), -1)
    assert torch.equal(got.isinf(), want.isinf())
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    tokens, logprobs = draw(logits, uniforms(range(64), 1)[:, 0], params)
    torch.testing.assert_close(logprobs, want.gather(1, tokens[:, None])[:, 0], atol=1e-5, rtol=0)
    assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize("vocabulary", [1, 7, BLOCK, BLOCK + 1, 3 * BLOCK, 1000])
def test_draw_inverts_the_cumulative_distribution(vocabulary: int) -> None:
    logits = torch.randn(200, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 2
    u = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tokens, logprobs = draw(logits, u, SamplingParams())
    p = torch.softmax(logits.double(), -1)
    upper = p.cumsum(-1).gather(1, tokens[:, None])[:, 0]
    lower = upper - p.gather(1, tokens[:, None])[:, 0]
    assert ((u >= lower - 1e-6) & (u <= upper + 1e-6)).all()
    torch.testing.assert_close(logprobs, torch.log_softmax(logits, -1).gather(1, tokens[:, None])[:, 0])


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
def test_impossible_tokens_are_never_drawn(u: float) -> None:
    logits = torch.full((1, 2 * BLOCK + 3), -torch.inf)
    logits[0, BLOCK + 4] = 1.0
    tokens, logprobs = draw(logits, torch.tensor([u], dtype=torch.float64), SamplingParams())
    assert tokens.item() == BLOCK + 4
    assert logprobs.item() == 0.0


def test_a_ban_redirects_the_draw_but_not_the_logprob() -> None:
    logits = torch.zeros(500, 4)
    logits[:, 2] = 200.0
    u = uniforms(range(500), 1)[:, 0]
    tokens, logprobs = draw(logits, u, SamplingParams(), banned=torch.tensor([2]))
    assert set(tokens.tolist()) == {0, 1, 3}
    torch.testing.assert_close(logprobs, torch.full((500,), -200.0))
    greedy, _ = draw(logits, u, SamplingParams(temperature=0), banned=torch.tensor([2]))
    assert 2 not in greedy.tolist()
    cut, cut_logprobs = draw(logits, u, SamplingParams(top_k=1), banned=torch.tensor([2]))
    assert 2 not in cut.tolist()
    assert torch.isfinite(cut_logprobs).all()


def test_uniforms_depend_on_the_seed_alone() -> None:
    a, b = uniforms([5, 6], 8), uniforms([6, 5, 7], 8)
    assert torch.equal(a[0], b[1])
    assert torch.equal(a[1], b[0])
    assert not torch.equal(a[0], a[1])
    assert torch.equal(uniforms([5], 3)[0], a[0, :3])
    assert a.dtype == torch.float64
    assert np.all((a.numpy() >= 0) & (a.numpy() < 1))


def first_stop(tokenizer: Any, text: str, stop: tuple[str, ...]) -> tuple[int | None, list[int]]:
    """Feed the tokens of ``text`` one by one; return after how many the checker says stop."""
    checker = StopStrings(tokenizer, stop)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    hit = next((n for n in range(1, len(ids) + 1) if checker.completed_by_last(ids[:n])), None)
    return hit, ids


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("the answer is here </answer> and more", "</answer>"),
        ("hello there\nUser: hi", "\nUser:"),
        ("a b  c", "  "),
        ("naïve café au lait", "é"),
        ("日本語のテキスト", "語"),
        ("x" * 90 + "STOP", "STOP"),
        ("aaaa", "aaa"),
        ("one</ans</answer>two", "</answer>"),
    ],
)
def test_stop_at_the_first_token_that_completes_the_string(tokenizer: Any, text: str, stop: str) -> None:
    hit, ids = first_stop(tokenizer, text, (stop, "absent"))
    want = next(n for n in range(1, len(ids) + 1) if stop in tokenizer.decode(ids[:n]))
    assert hit == want


def test_no_stop_without_the_string(tokenizer: Any) -> None:
    assert first_stop(tokenizer, "the answer is here", ("</answer>", ""))[0] is None
    assert not StopStrings(tokenizer, ("",))


def test_a_stop_string_that_ended_earlier_does_not_count(tokenizer: Any) -> None:
    checker = StopStrings(tokenizer, ("at",))
    ids = tokenizer("the cat!t", add_special_tokens=False)["input_ids"]
    assert not checker.completed_by_last(ids)
