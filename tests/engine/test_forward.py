"""Logprobs and gradients of completions do not depend on how they were computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.models.layers.trunk_and_head import pad_values
from rlhf_core.training import forward
from rlhf_core.training.forward import ALL, allowed, completion_logprobs, structure
from rlhf_core.types.errors import ModelError

VOCABULARY = 320
KINDS = ("llama", "gpt2", "mistral", "gemma2")
PROMPTS = [(1, 2, 3)] * 3 + [(0, 5, 6, 7, 0, 8, 9)] * 2 + [(9,), (0, 5, 6, 7, 0, 8, 9)]
COMPLETIONS = [(4,), (5, 0, 0), (7, 8, 9, 1, 2, 11), (), (0, 0), (3, 3, 3, 319, 4, 5, 6, 7), (319,)]
kinds = pytest.mark.parametrize("model", KINDS, indirect=True)


def objective(logprobs: torch.Tensor, entropy: torch.Tensor, row: int) -> torch.Tensor:
    """Every token of every row weighs differently, and so does its entropy."""
    weights = torch.sin(torch.arange(1, logprobs.numel() + 1, dtype=torch.float32) + row)
    return (logprobs * weights).sum() + 0.3 * (entropy * weights.flip(0)).sum()


def direct(model: Any, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> tuple[Any, Any]:
    """One sequence, the model's own logits, textbook formulas."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1] / temperature
    logp = torch.log_softmax(logits, -1)
    return logp[torch.arange(len(completion)), list(completion)], -(logp.exp() * logp).sum(-1)


def gradients(model: Any) -> list[torch.Tensor]:
    values = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return values


def truth(
    model: Any, prompts: Any, completions: Any, temperature: float
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    logprobs, total = [], torch.zeros(())
    for row, (p, c) in enumerate(zip(prompts, completions)):
        logp, entropy = direct(model, p, c, temperature) if c else (torch.zeros(0), torch.zeros(0))
        total = total + objective(logp, entropy, row)
        logprobs.append(logp.detach())
    total.backward()
    return logprobs, gradients(model)


def ours(
    model: Any, prompts: Any, completions: Any, rows: Sequence[int], temperature: float, **options: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The chosen rows in one micro-batch."""
    out = completion_logprobs(
        model,
        [prompts[r] for r in rows],
        [completions[r] for r in rows],
        temperature=temperature,
        entropy=True,
        **options,
    )
    assert out.entropy_BT is not None
    assert out.mask_BT.sum(1).tolist() == [len(completions[r]) for r in rows]
    assert not out.logprobs_BT.detach()[~out.mask_BT].any()
    sum(
        (
            objective(out.logprobs_BT[i][out.mask_BT[i]], out.entropy_BT[i][out.mask_BT[i]], r)
            for i, r in enumerate(rows)
        ),
        torch.zeros(()),
    ).backward()
    return [out.logprobs_BT[i][out.mask_BT[i]].detach() for i in range(len(rows))], gradients(model)


def assert_same(got: list[torch.Tensor], want: list[torch.Tensor], tolerance: float) -> None:
    for g, w in zip(got, want, strict=True):
        largest = float(w.abs().max()) if w.numel() else 0.0
        torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance * max(1.0, largest))


@kinds
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("memory", [None, {}, {"keep_bytes": 0}, {"keep_bytes": 0, "chunk_bytes": 4 * VOCABULARY * 3}])
def test_equals_one_sequence_at_a_time(
    model: Any, shared: bool, packed: bool, memory: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "head_logprobs", partial(forward.head_logprobs, **(memory or {})))
    paths = {"shared_prefix": shared, "packed": packed, "chunked": memory is not None}
    want, want_grads = truth(model, PROMPTS, COMPLETIONS, 0.7)
    got, grads = ours(model, PROMPTS, COMPLETIONS, range(len(PROMPTS)), 0.7, **paths)
    assert_same(got, want, 1e-5)
    assert_same(grads, want_grads, 1e-5)


@kinds
def test_gradient_is_the_same_in_any_micro_batches(model: Any) -> None:
    _, want = truth(model, PROMPTS, COMPLETIONS, 1.3)
    for split in ([[0, 1, 2], [3, 4, 5, 6]], [[6, 0], [5, 1, 4], [2, 3]], [[5], [4, 6, 2, 0, 1]]):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for rows in split:
            _, grads = ours(model, PROMPTS, COMPLETIONS, rows, 1.3)
            total = [a + b for a, b in zip(total, grads)]
        assert_same(total, want, 1e-5)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_shared_and_packed_equal_padded_for_any_batch(new_model: Any, data: st.DataObject) -> None:
    torch.manual_seed(0)
    model = new_model(data.draw(st.sampled_from(("llama", "gpt2", "mistral"))))
    ids = st.integers(0, VOCABULARY - 1)
    prompts = data.draw(st.lists(st.lists(ids, min_size=1, max_size=9), min_size=1, max_size=3))
    owners = data.draw(st.lists(st.integers(0, len(prompts) - 1), min_size=2, max_size=6))
    completions = [data.draw(st.lists(ids, min_size=1, max_size=7)) for _ in owners]
    rows = [prompts[o] for o in owners]
    a, grads_a = ours(model, rows, completions, range(len(rows)), 1.0, shared_prefix=False, packed=False)
    for options in ({"packed": False}, {"shared_prefix": False}, {}):
        b, grads_b = ours(model, rows, completions, range(len(rows)), 1.0, **options)
        assert_same(a, b, 1e-5)
        assert_same(grads_a, grads_b, 1e-5)


@pytest.mark.parametrize(
    ("model", "allowed_kernels"),
    [
        ("llama", (True, True, True)),
        ("gpt2", (True, True, True)),
        ("mistral", (True, True, True)),
        ("gemma2", (False, False, False)),
        ("mamba", (True, False, False)),
    ],
    indirect=["model"],
)
def test_structure_is_found_by_trying(model: Any, allowed_kernels: tuple[bool, bool, bool]) -> None:
    """A cap on the logits forbids the split; a recurrent state would leak from sequence to sequence of a row."""
    assert (structure(model).split, structure(model).share, structure(model).pack) == allowed_kernels


def test_a_scaled_head_is_noticed(new_model: Any) -> None:
    """A model that divides its logits (as Granite does) must not be split, whatever its config calls it."""
    model = new_model("llama")
    original = model.forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        out.logits = out.logits / 8
        return out

    model.forward = scaled
    want, want_grads = truth(model, PROMPTS, COMPLETIONS, 1.0)
    got, grads = ours(model, PROMPTS, COMPLETIONS, range(len(PROMPTS)), 1.0)
    assert structure(model).split is False
    assert_same(got, want, 1e-5)
    assert_same(grads, want_grads, 1e-5)


def counted(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that the trunk will be called with."""
    structure(model)
    positions: list[tuple[int, ...]] = []
    run = model.model.forward

    def count(*args: Any, **kwargs: Any) -> Any:
        positions.append(tuple(kwargs["input_ids"].shape))
        return run(*args, **kwargs)

    monkeypatch.setattr(model.model, "forward", count)
    return positions


def test_sharing_really_shares(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 40 tokens and 8 completions of 5 cost 40 + 8 * 4 positions, not 8 * 44."""
    positions = counted(model, monkeypatch)
    completion_logprobs(model, [tuple(range(40))] * 8, [(1, 2, 3, 4, 5)] * 8, packed=False)
    assert positions == [(1, 40), (8, 4)]


def test_packing_leaves_no_padding(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Completions of 2, 5 and 9 tokens cost 1 + 4 + 8 positions; without sharing each brings its own prompt."""
    positions = counted(model, monkeypatch)
    completions = [tuple(range(n)) for n in (2, 5, 9)]
    completion_logprobs(model, [(7, 8, 9)] * 3, completions)
    completion_logprobs(model, [(7, 8, 9)] * 3, completions, shared_prefix=False)
    assert positions == [(1, 3 + 13), (1, 3 * 3 + 13)]


def test_no_token_sees_another_sequence(model: Any) -> None:
    """Changing one completion changes no logprob of the others, not even in the last bit."""
    first = completion_logprobs(model, PROMPTS, COMPLETIONS).logprobs_BT
    changed = [tuple(319 - t for t in c) if i == 2 else c for i, c in enumerate(COMPLETIONS)]
    second = completion_logprobs(model, PROMPTS, changed).logprobs_BT
    same = [torch.equal(a, b) for a, b in zip(first, second)]
    assert same == [True, True, False, True, True, True, True]


def test_a_packed_model_still_takes_a_mask(new_model: Any) -> None:
    """Every other forward of the model is ``sdpa``'s, padding on the left included."""
    a, b = new_model("llama"), new_model("llama")
    b.load_state_dict(a.state_dict())
    assert structure(a).pack
    ids, mask = torch.tensor([[0, 0, 5, 6], [1, 2, 3, 4]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    got, want = (m(input_ids=ids, attention_mask=mask).logits[:, -1] for m in (a, b))
    assert torch.equal(got, want)


@pytest.mark.parametrize("packed", [False, True])
def test_gradient_checkpointing_changes_no_gradient(model: Any, packed: bool) -> None:
    from rlhf_core.models.gradient_checkpointing import wake_checkpointing

    _, want = ours(model, PROMPTS, COMPLETIONS, range(len(PROMPTS)), 1.0, packed=packed)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    wake_checkpointing(model)
    calls: list[int] = []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    _, got = ours(model, PROMPTS, COMPLETIONS, range(len(PROMPTS)), 1.0, packed=packed)
    assert len(calls) == 2, "the layer should run again in the backward pass"
    assert_same(got, want, 1e-5)


@pytest.mark.parametrize("model", ["gemma2"], indirect=True)
def test_packing_can_be_insisted_on(model: Any) -> None:
    assert allowed(model, ALL) == ALL.without("packing")
    with pytest.raises(ModelError, match=r"Gemma2ForCausalLM cannot be packed"):
        allowed(model, ALL, packing_required=True)


def test_sharing_without_packing_is_off_under_checkpointing(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    from rlhf_core.models.gradient_checkpointing import wake_checkpointing

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    wake_checkpointing(model)
    assert allowed(model, ALL) == ALL
    assert allowed(model, ALL.without("packing")).names == ["chunked_head"]
    assert "prefix sharing is off" in caplog.text
    assert "trainer.packing=auto" in caplog.text


def test_adapters_take_part(model: Any) -> None:
    from rlhf_core.models.config import LoraSettings
    from rlhf_core.models.save import add_lora

    adapted = add_lora(model, LoraSettings(r=4))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    want, want_grads = truth(adapted, PROMPTS, COMPLETIONS, 1.0)
    got, grads = ours(adapted, PROMPTS, COMPLETIONS, range(len(PROMPTS)), 1.0)
    assert_same(got, want, 1e-5)
    assert_same(grads, want_grads, 1e-5)


@pytest.mark.parametrize(
    ("prompts", "completions", "temperature", "word"),
    [
        ([(1,)], [(2,), (3,)], 1.0, "1 prompts but 2"),
        ([()], [(2,)], 1.0, "no tokens"),
        ([(1,)], [()], 1.0, "no completion"),
        ([(1,)], [(2,)], 0.0, "temperature"),
    ],
)
def test_errors_say_what_is_wrong(model: Any, prompts: Any, completions: Any, temperature: float, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        completion_logprobs(model, prompts, completions, temperature=temperature)


def test_flat_values_are_laid_into_rows_and_never_spread() -> None:
    """One value for three places would be broadcast to all of them without an error."""
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    rows = pad_values(values, [1, 0, 2])
    assert rows.tolist() == [[1.0, 0.0], [0.0, 0.0], [2.0, 3.0]]
    (rows * torch.tensor([[1.0, 9.0], [9.0, 9.0], [5.0, 7.0]])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1.0, 5.0, 7.0]
    with pytest.raises(ValueError, match="for rows of 3"):
        pad_values(values[:1], [1, 0, 2])
