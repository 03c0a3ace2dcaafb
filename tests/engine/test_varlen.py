"""What operators for sequences of different length are given, by plain ones that do what those document.

The operators themselves need a GPU: `rlhf doctor --device cuda` compares them with the plain forward there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as torch_varlen
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.layers import packing
from rlhf_core.models.layers.packing import BACKENDS, BY_SEGMENT, AttentionBackend, Kind, pack, packed_hidden
from rlhf_core.models.layers.segments import Segment, attend_by_segment
from rlhf_core.models.layers.segments import layout as lay_out
from rlhf_core.models.load import load_policy
from rlhf_core.training.forward import structure
from rlhf_plugin_preflight.device import forwards

CPU = torch.device("cpu")
PROMPTS = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (7, 8), (1, 2, 3, 4, 5)]
COMPLETIONS = [(6, 7, 8), (9,), (5, 6, 7, 8, 9, 10), (11, 12)]
TORCH, FLASH, FLEX = BACKENDS
KIND = Kind(CPU, torch.bfloat16, 4, 2, 8, windowed=True, deterministic=False)


def sequences(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: tuple[torch.Tensor, torch.Tensor],
    longest: tuple[int, int],
    scale: float | None,
    window: tuple[int, int],
    last: bool = True,
) -> torch.Tensor:
    """Sequence by sequence; the last query sees the last key, or the first query the first key."""
    assert all(each.dtype == torch.int32 for each in starts)
    assert all(x.is_contiguous() for x in (query, key, value))
    sizes_q, sizes_k = (each.diff().tolist() for each in starts)
    assert (max(sizes_q), max(sizes_k)) == longest
    out: list[torch.Tensor] = []
    for q, k, v in zip(query.split(sizes_q), key.split(sizes_k), value.split(sizes_k), strict=True):
        shift = len(k) - len(q) if last else 0
        behind = torch.arange(len(q))[:, None] + shift - torch.arange(len(k))[None]
        seen = (behind >= -window[1]) & (behind <= window[0] if window[0] >= 0 else True)
        grouped = q.shape[1] != k.shape[1]
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out.append(F.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=grouped)[0].transpose(0, 1))
    return torch.cat(out)


def plain_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As ``torch.nn.attention.varlen.varlen_attn`` of torch 2.12 and later documents."""
    assert enable_gqa or query.shape[1] == key.shape[1]
    assert window_size[1] == 0, "causal"
    return sequences(query, key, value, (cu_seq_q, cu_seq_k), (max_q, max_k), scale, window_size)


def plain_torch_2_11(*arguments: Any, **options: Any) -> torch.Tensor:
    """Without a word for grouped heads, which its kernel takes unsaid."""
    assert "enable_gqa" not in options
    return plain_torch(*arguments, **options, enable_gqa=True)


def plain_flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    deterministic: bool = False,
    last: bool = True,
) -> torch.Tensor:
    """As ``flash_attn.flash_attn_varlen_func`` 2.4.1 and later documents: a query at ``i`` sees keys from ``i + keys -
    queries - left`` to ``i + keys - queries + right``, and none after itself where it is causal."""
    assert deterministic == torch.are_deterministic_algorithms_enabled()
    assert not dropout_p
    left, right = window_size
    right = 0 if causal else right
    starts = cu_seqlens_q, cu_seqlens_k
    return sequences(q, k, v, starts, (max_seqlen_q, max_seqlen_k), softmax_scale, (left, right), last)


def before_2_1(*arguments: Any, **options: Any) -> torch.Tensor:
    """flash-attn before 2.1: the first query sees the first key."""
    return plain_flash(*arguments, **options, last=False)


def install_flash(monkeypatch: pytest.MonkeyPatch, function: Any = plain_flash) -> None:
    module: Any = ModuleType("flash_attn")
    module.flash_attn_varlen_func = function
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    forget()


def forget() -> None:
    packing.first_backend.cache_clear()
    packing.refusal.cache_clear()


@pytest.fixture(autouse=True)
def nothing_tried() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.mark.parametrize("backend", [TORCH, FLASH], ids=lambda backend: backend.name)
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_one_call_attends_as_a_call_per_segment(
    backend: AttentionBackend, share: bool, window: int | None, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_varlen, "varlen_attn", plain_torch)
    install_flash(monkeypatch)
    torch.manual_seed(0)
    row = pack(PROMPTS, COMPLETIONS, share)
    tokens = len(row.ids)
    found: list[list[torch.Tensor]] = []
    made = [torch.randn(1, heads, tokens, 8) for heads in (4, key_heads, key_heads)]
    upstream = torch.randn(1, tokens, 4, 8)
    for once in (False, True):
        query, key, value = (x.clone().requires_grad_() for x in made)
        if once:
            rows = backend.prepare(row.segments, window, CPU)
            assert (rows.key_positions_K is None) is not share
            out = backend.attend(query, key, value, rows, 0.3, window)
        else:
            out = attend_by_segment(query, key, value, row.segments, 0.3, window)
        (out * upstream).sum().backward()
        found.append([out.detach(), *(x.grad for x in (query, key, value) if x.grad is not None)])
    assert [x.shape for x in found[0]] == [x.shape for x in found[1]]
    assert max(float((a - b).abs().max()) for a, b in zip(*found, strict=True)) < 1e-5


def test_torch_is_told_of_grouped_heads_only_where_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (plain_torch, plain_torch_2_11):
        monkeypatch.setattr(torch_varlen, "varlen_attn", function)
        forget()
        assert packing.refusal(TORCH, KIND) is None


def test_flash_attn_is_told_where_results_are_to_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    install_flash(monkeypatch)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert packing.refusal(FLASH, KIND._replace(deterministic=True)) is None, "plain_flash asserts it"


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_a_model_takes_it_where_it_runs(backend: AttentionBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_varlen, "varlen_attn", plain_torch)
    install_flash(monkeypatch)
    prepared: list[Any] = []

    def prepare(*arguments: Any) -> Any:
        prepared.append(backend.prepare(*arguments))
        return prepared[-1]

    attended: list[Any] = []

    def attend(*arguments: Any) -> Any:
        attended.append(arguments[3])
        return backend.attend(*arguments)

    model = load_policy(ModelConfig(path="pocket")).model.eval()
    assert structure(model).pack
    with torch.no_grad():
        by_segment = packed_hidden(model, PROMPTS, COMPLETIONS, True)
        monkeypatch.setattr(packing, "select_backend", lambda *_: AttentionBackend(backend.name, prepare, attend))
        at_once = packed_hidden(model, PROMPTS, COMPLETIONS, True)
    assert len(attended) == model.config.num_hidden_layers
    assert len(prepared) == 1, "once for all layers"
    assert all(each is prepared[0] for each in attended)
    assert float((at_once - by_segment).abs().max()) < 1e-4


def test_it_is_not_taken_where_it_cannot_run() -> None:
    """Neither on a CPU, nor on a device whose build lacks it: it is tried, not believed."""
    heads = torch.zeros((1, 4, 3, 8), dtype=torch.bfloat16)
    with forwards.selected_backends() as taken:
        assert packing.select_backend(heads, heads, heads, None) is None
    assert list(taken) == [BY_SEGMENT]
    assert packing.refusal(TORCH, KIND) is not None, "the operator is CUDA's alone"
    assert "flash_attn" in str(packing.refusal(FLASH, KIND))
    assert packing.refusal(FLEX, KIND) is not None, "torch refuses its backward on a CPU"
    assert packing.first_backend(KIND, tuple(backend.name for backend in BACKENDS)).backend is None


def test_the_first_that_agrees_is_taken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rlhf.models")
    every = tuple(backend.name for backend in BACKENDS)
    install_flash(monkeypatch, before_2_1)
    assert packing.first_backend(KIND, every).backend is None, "it runs, and attends to other tokens"
    assert "flash-attn: differs by" in caplog.text
    install_flash(monkeypatch)
    with torch.inference_mode():
        assert packing.first_backend(KIND, every).backend is FLASH, (
            "whoever scores first does not decide for who trains"
        )
    monkeypatch.setattr(torch_varlen, "varlen_attn", plain_torch)
    forget()
    caplog.clear()
    for _ in range(2):
        assert packing.first_backend(KIND, every).backend is TORCH
    assert [record.getMessage() for record in caplog.records] == [
        "attention of packed rows on cpu in torch.bfloat16: torch's varlen_attn"
    ]
    assert packing.first_backend(KIND, (FLASH.name,)).backend is FLASH


def test_a_trial_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    install_flash(monkeypatch)
    before = torch.get_rng_state()
    assert packing.refusal(FLASH, KIND) is None
    assert torch.equal(torch.get_rng_state(), before)


def test_a_checkpointed_layer_may_be_the_first_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial's backward would compute the layer again, and its tensors be counted among the layer's."""
    install_flash(monkeypatch)
    monkeypatch.setattr(packing, "DEVICES", ("cpu",))
    forget()
    row = torch.randn(1, KIND.heads, 3, KIND.head_size, dtype=KIND.dtype, requires_grad=True)
    taken: list[AttentionBackend | None] = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        key = x[:, : KIND.key_heads] * 2
        taken.append(packing.select_backend(x, key, key, None))
        return (x * x).sum()

    checkpoint(layer, row, use_reentrant=False).backward()
    assert taken == [FLASH, FLASH], "forward and the forward that backward makes again"
    assert torch.equal(row.grad, 2 * row.detach())


def test_autocast_decides_the_number_type() -> None:
    """Under ``trainer.precision=bf16`` rotary embeddings leave float32, and attention computes in bfloat16."""
    heads = torch.zeros(1)
    assert packing.computed_in(heads) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert packing.computed_in(heads) == torch.bfloat16


def test_segments_of_a_row() -> None:
    rows = lay_out([Segment((0, 2)), Segment((2, 3), (0, 2)), Segment((3, 6), (0, 2))], CPU)
    assert rows.query_starts.tolist() == [0, 2, 3, 6]
    assert rows.key_starts.tolist() == [0, 2, 5, 10]
    assert rows.key_positions_K is not None
    assert rows.key_positions_K.tolist() == [0, 1, 0, 1, 2, 0, 1, 3, 4, 5]


@pytest.mark.slow
def test_the_device_check_compares_every_way_and_names_the_one_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU with flash-attn and a torch before `varlen_attn`."""
    loaded = load_policy(ModelConfig(path="pocket"))
    monkeypatch.setattr(packing, "DEVICES", ("cpu",))
    monkeypatch.setattr(forwards, "_timed_pair", lambda *_: (1.0, 1.0))
    install_flash(monkeypatch)
    rows = {row.what: row for row in forwards.compare_forwards(loaded, CPU, "bf16")}
    assert rows["forward bf16: packing"].verdict == "agrees"
    assert rows["forward bf16: packing"].detail.endswith(f"attention: {FLASH.name}")
    others = {what: row for what, row in rows.items() if "packing by" in what}
    assert {what: row.verdict for what, row in others.items()} == {
        f"forward bf16: packing by {TORCH.name}": "not run",
        f"forward bf16: packing by {FLASH.name}": "agrees",
        f"forward bf16: packing by {FLEX.name}": "not run",
    }
    assert "CPU" in others[f"forward bf16: packing by {FLEX.name}"].detail, "why it does not run"
    fp32 = {row.what: row for row in forwards.compare_forwards(loaded, CPU, "fp32")}
    assert fp32["forward fp32: packing"].detail.endswith(f"attention: {BY_SEGMENT}")
    assert not any("packing by" in what for what in fp32)
