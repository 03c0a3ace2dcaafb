"""FlexAttention of packed rows against attention segment by segment, and its mask against torch's own.

Torch has no kernel for its backward on a CPU, and refuses; its step-by-step backward is right there, too.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from torch._dynamo.testing import CompileCounterWithBackend

from rlhf_core.models.layers import segments as flex
from rlhf_core.models.layers.segments import Segment, attend_by_segment

CPU = torch.device("cpu")
TABLES = [f"{name}_{what}" for name in ("kv", "full_kv", "q", "full_q") for what in ("num_blocks", "indices")]


@pytest.fixture(autouse=True)
def backward_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)


def segments_of(length: int) -> list[Segment]:
    """Prompts, each with up to three segments that continue it."""
    rng, segments, end = random.Random(length), list[Segment](), 0
    while end < length:
        start, end = end, min(length, end + rng.randint(1, 300))
        prompt = (start, end)
        segments.append(Segment(prompt))
        for _ in range(rng.randint(0, 3)):
            if end < length:
                start, end = end, min(length, end + rng.randint(1, 200))
                segments.append(Segment((start, end), prompt))
    return segments


def heads(length: int, key_heads: int) -> list[torch.Tensor]:
    torch.manual_seed(length)
    return [torch.randn(1, count, length, 16, requires_grad=True) for count in (4, key_heads, key_heads)]


def largest_gap(got: torch.Tensor, want: torch.Tensor, inputs: list[torch.Tensor]) -> float:
    """Of the output and of the gradients."""
    upstream = torch.randn_like(want)
    grads = (torch.autograd.grad((out * upstream).sum(), inputs) for out in (got, want))
    pairs = [(got, want), *zip(*grads, strict=True)]
    assert got.shape == want.shape
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("length", [5, 128, 129, 700])
@pytest.mark.parametrize("window", [None, 3, 150])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_it_attends_as_a_call_per_segment(length: int, window: int | None, key_heads: int) -> None:
    segments, inputs = segments_of(length), heads(length, key_heads)
    mask = flex.block_mask(segments, window, CPU)
    got = flex.attend_flex(*inputs, mask, 0.3)
    assert largest_gap(got, attend_by_segment(*inputs, segments, 0.3, window), inputs) < 1e-5


@pytest.mark.parametrize("length", [5, 128, 129, 1500])
@pytest.mark.parametrize("window", [None, 3, 150])
def test_the_blocks_are_those_that_torch_counts(length: int, window: int | None) -> None:
    """Torch makes a mask as large as the row squared to count them."""
    mask = flex.block_mask(segments_of(length), window, CPU)
    want = torch_flex.create_block_mask(mask.mask_mod, None, None, length, length, device="cpu")
    assert mask.shape == want.shape
    for name in TABLES:
        got, wanted = getattr(mask, name), getattr(want, name)
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted), name


@pytest.mark.slow
def test_rows_of_other_lengths_and_windows_are_not_compiled_again() -> None:
    """A row of one block and rows of several; dynamo takes a size of 1 for a constant."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = flex._compiled(4, 2, 16, backend=counter)
    counts: list[int] = []
    for length in (300, 129, 700):
        for window in (None, 40):
            segments, inputs = segments_of(length), heads(length, 2)
            got = compiled(*inputs, flex.block_mask(segments, window, CPU), 0.3, True).transpose(1, 2)
            assert largest_gap(got, attend_by_segment(*inputs, segments, 0.3, window), inputs) < 1e-4
            counts.append(counter.frame_count)
    assert len(set(counts)) == 1, counts
    assert flex._compiled(8, 2, 16, backend=counter) is not compiled
