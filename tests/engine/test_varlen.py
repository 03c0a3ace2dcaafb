"""The layout for torch's operator for sequences of different length, by a plain operator that does what that does.

The operator itself needs a GPU: `rlhf doctor --device cuda` compares it with the plain forward there.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rlhf_core.kernels import packing, varlen
from rlhf_core.kernels.packing import Segment, Segments, attend, pack, packed_hidden
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.policy.structure import structure

PROMPTS = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (7, 8), (1, 2, 3, 4, 5)]
COMPLETIONS = [(6, 7, 8), (9,), (5, 6, 7, 8, 9, 10), (11, 12)]


def plain_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> torch.Tensor:
    """As documented for ``torch.nn.attention.varlen.varlen_attn``: sequence by sequence, the last query sees the last
    key."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert window_size[1] == 0, "causal"
    sizes_q, sizes_k = cu_seq_q.diff().tolist(), cu_seq_k.diff().tolist()
    assert (max(sizes_q), max(sizes_k)) == (max_q, max_k)
    out: list[torch.Tensor] = []
    for q, k, v in zip(query.split(sizes_q), key.split(sizes_k), value.split(sizes_k), strict=True):
        behind = torch.arange(len(q))[:, None] + len(k) - len(q) - torch.arange(len(k))[None]
        seen = (behind >= 0) & (behind <= window_size[0] if window_size[0] >= 0 else True)
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        got = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)
        out.append(got[0].transpose(0, 1))
    return torch.cat(out)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_one_call_attends_as_a_call_per_segment(share: bool, window: int | None, key_heads: int) -> None:
    torch.manual_seed(0)
    row = pack(PROMPTS, COMPLETIONS, share)
    tokens = len(row.ids)
    found: list[list[torch.Tensor]] = []
    made = [torch.randn(1, heads, tokens, 8) for heads in (4, key_heads, key_heads)]
    upstream = torch.randn(1, tokens, 4, 8)
    mask = torch.ones((1, 1, 1, 1), dtype=torch.bool).as_subclass(Segments)
    mask.segments = row.segments
    for once in (False, True):
        query, key, value = (x.clone().requires_grad_() for x in made)
        if once:
            rows = varlen.layout(row.segments, torch.device("cpu"))
            assert (rows.key_places_K is None) is not share
            out = varlen.attend_row(query, key, value, rows, 0.3, window, plain_varlen)
        else:
            out, _ = attend(SimpleNamespace(), query, key, value, mask, scaling=0.3, sliding_window=window)
        (out * upstream).sum().backward()
        found.append([out.detach(), *(x.grad for x in (query, key, value) if x.grad is not None)])
    assert [x.shape for x in found[0]] == [x.shape for x in found[1]]
    assert max(float((a - b).abs().max()) for a, b in zip(*found, strict=True)) < 1e-5


def test_a_model_takes_it_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        calls.append(1)
        return plain_varlen(*arguments, **options)

    model = load_policy(ModelConfig(path="pocket")).model.eval()
    assert structure(model).pack
    with torch.no_grad():
        by_segment = packed_hidden(model, PROMPTS, COMPLETIONS, True)
        monkeypatch.setattr(packing, "possible", lambda query, key, value: True)
        monkeypatch.setattr(varlen, "_operator", lambda: counted)
        at_once = packed_hidden(model, PROMPTS, COMPLETIONS, True)
    assert len(calls) == model.config.num_hidden_layers
    assert not torch.equal(at_once, torch.zeros_like(at_once))
    assert float((at_once - by_segment).abs().max()) < 1e-4


def test_it_is_not_taken_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on a CPU, nor on a device whose build lacks it: it is tried, not believed."""
    kind = (torch.device("cpu"), torch.bfloat16, 4, 4, 8)
    heads = torch.zeros((1, 4, 3, 8), dtype=torch.bfloat16)
    assert not varlen.possible(heads, heads, heads)
    varlen._runs.cache_clear()
    assert not varlen._runs(*kind), "the operator is CUDA's alone"
    varlen._runs.cache_clear()
    monkeypatch.setattr(varlen, "_operator", lambda: plain_varlen)
    with torch.inference_mode():
        assert varlen._runs(*kind), "whoever scores first does not decide for who trains"
    varlen._runs.cache_clear()


def test_autocast_decides_the_number_type() -> None:
    """Under ``trainer.precision=bf16`` rotary embeddings leave float32, and attention computes in bfloat16."""
    heads = torch.zeros(1)
    assert varlen.computed_in(heads) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert varlen.computed_in(heads) == torch.bfloat16


def test_segments_of_a_row() -> None:
    rows = varlen.layout([Segment((0, 2)), Segment((2, 3), (0, 2)), Segment((3, 6), (0, 2))], torch.device("cpu"))
    assert rows.query_starts.tolist() == [0, 2, 3, 6]
    assert rows.key_starts.tolist() == [0, 2, 5, 10]
    assert rows.key_places_K is not None
    assert rows.key_places_K.tolist() == [0, 1, 0, 1, 2, 0, 1, 3, 4, 5]
