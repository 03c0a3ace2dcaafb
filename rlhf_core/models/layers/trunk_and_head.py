"""A causal language model as trunk and head, and its plain right-padded forward: no real token looks to its right.

Suffixes: ``_B`` sequences, ``_L`` positions, ``_N`` completion tokens of all rows, flat, ``_H`` hidden, ``_V``
vocabulary, ``_X`` either of the last two.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


def base_model(model: Any) -> Any:
    """Return the transformers causal LM under a peft wrapper (adapters stay active: they live in its layers)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@dataclass(frozen=True)
class TrunkAndHead:
    """A causal LM taken apart."""

    trunk: Any
    head: Any
    """Hidden states to logits. Some models do more to the logits (:func:`has_linear_head`)."""


def split_lm_head(model: Any, *, linear: bool = False) -> TrunkAndHead | None:
    """Return trunk and head of a causal LM (adapters included), None where they cannot be found, and with ``linear``
    also where ``head(trunk(ids))`` are not the model's logits.
    """
    if linear and not has_linear_head(model):
        return None
    base = base_model(model)
    try:
        trunk, head = base.get_decoder(), base.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return None if trunk is base or head is None else TrunkAndHead(trunk, head)


def trunk_and_head(model: Any) -> TrunkAndHead:
    """As :func:`split_lm_head`, for a model of which ``has_linear_head(model)`` is known to hold."""
    parts = split_lm_head(model)
    assert parts is not None, f"{type(base_model(model)).__name__} does not split; call has_linear_head(model) first"
    return parts


def cache_argument(module: Any) -> str | None:
    """The name of the cache among a module's arguments, which transformers 5.24 changed; None where it takes none."""
    names = inspect.signature(type(module).forward).parameters
    return next((name for name in ("cache", "past_key_values", "cache_params") if name in names), None)


def compute_dtype(model: torch.nn.Module) -> torch.dtype:
    """Number type of the trunk's matrix products: its weights' own, unless it runs in mixed precision."""
    parts = split_lm_head(model)
    owner = base_model(model) if parts is None else parts.trunk
    return getattr(owner, "compute_dtype", next(model.parameters()).dtype)


def checkpointing(model: torch.nn.Module) -> bool:
    """Whether gradient checkpointing is active; it switches caches off inside transformers."""
    return any(getattr(m, "gradient_checkpointing", False) and m.training for m in base_model(model).modules())


def call_trunk_once(module: torch.nn.Module) -> None:
    """Let every later forward call each layer once on any samples: on shards each call of a layer is a collective."""
    for part in module.modules():
        if hasattr(part, "get_output_embeddings"):
            part.__dict__["_rlhf_one_call"] = True


def trunk_called_once(model: torch.nn.Module) -> bool:
    """Whether :func:`call_trunk_once` was said of it."""
    return "_rlhf_one_call" in base_model(model).__dict__


@contextmanager
def quiet(model: torch.nn.Module) -> Generator[None, None, None]:
    """Eval mode inside, every module's own mode restored after."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


TOLERANCE = 1e-4
"""Largest relative difference (float32) that still counts as agreement; bfloat16 is given 100 times as much."""


def rounding_tolerance(model: torch.nn.Module) -> float:
    """Largest relative difference allowed between a kernel and its plain equivalent, by the model's number type."""
    return TOLERANCE if compute_dtype(model) == torch.float32 else 100 * TOLERANCE


def agree(got: torch.Tensor, want: torch.Tensor, model: torch.nn.Module, times: float = 1.0) -> bool:
    """Whether two results of one model are the same but for rounding, ``-inf`` included: they differ by no more than
    ``times`` the :func:`rounding_tolerance`.
    """
    if got.shape != want.shape or not torch.equal(got.isneginf(), want.isneginf()):
        return False
    got, want = (values.float().masked_fill(values.isneginf(), 0.0) for values in (got, want))
    gap = (got - want).abs().max() / want.abs().max().clamp(min=1e-6)
    return bool(gap <= times * rounding_tolerance(model))


_linear_heads: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def has_linear_head(model: torch.nn.Module) -> bool:
    """Whether ``head(trunk(ids))`` are the model's logits, tried once; some models scale or cap them (Gemma 2)."""
    base = base_model(model)
    if base not in _linear_heads and next(base.parameters()).is_meta:
        return split_lm_head(model) is not None  # without weights there is nothing to try; the first forward does
    if base not in _linear_heads:
        with torch.no_grad(), quiet(model):
            _linear_heads[base] = _split_agrees(model)
    return _linear_heads[base]


def probe_ids(model: torch.nn.Module) -> list[list[int]]:
    """Two short token sequences, of 5 and 6 valid ids, on which a model's forwards are compared."""
    vocabulary = int(base_model(model).config.get_text_config().vocab_size)
    return [[(7 * i + 3 * row + 1) % vocabulary for i in range(5 + row)] for row in range(2)]


def _split_agrees(model: torch.nn.Module) -> bool:
    """The head's output *is* the logits; it is enlarged, so that a cap or a scale shows where logits are small."""
    parts = split_lm_head(model)
    if parts is None:
        return False
    seen: dict[str, torch.Tensor] = {}

    def enlarge(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        seen["hidden"], seen["logits"] = inputs[0], output * 1000.0
        return seen["logits"]

    ids_BL = torch.tensor(probe_ids(model)[:1], device=next(model.parameters()).device)
    handle = parts.head.register_forward_hook(enlarge)
    try:
        logits_BLV = base_model(model)(input_ids=ids_BL, use_cache=False).logits
    finally:
        handle.remove()
    hidden_BLH = parts.trunk(input_ids=ids_BL, use_cache=False).last_hidden_state
    return "hidden" in seen and agree(seen["hidden"], hidden_BLH, model) and agree(seen["logits"], logits_BLV, model)


def looks_ahead(model: Any) -> bool:
    """Whether a token's output depends on the tokens after it, as in an encoder; runs one short forward."""
    first = probe_ids(model)[0]
    ids_BL = torch.tensor([first, [*first[:-1], first[0]]], device=next(model.parameters()).device)
    with torch.no_grad(), quiet(model):
        out = base_model(model)(input_ids=ids_BL, use_cache=False)
        one_LX, other_LX = (out.logits if "logits" in out else out.last_hidden_state)[:, :-1]
    return not agree(one_LX, other_LX, model)


def keys_and_values_only(cache: Any) -> bool:
    """Whether no layer of a key-value cache has a recurrent state."""
    from transformers.cache_utils import DynamicLayer

    return all(isinstance(layer, DynamicLayer) and not hasattr(layer, "recurrent_states") for layer in cache.layers)


def length_limit(model: Any) -> int | None:
    """Longest sequence whose rotary frequencies are those of shorter ones (LongRoPE, dynamic NTK); None: no limit.
    Beyond it a logprob would depend on the other sequences of a batch, so nothing runs there.
    """
    return min((limit for _, limit in _limits(base_model(model).config)), default=None)


def rope_type(model: Any) -> str:
    """Names what limits the length (``longrope``, ``dynamic``); empty where nothing does."""
    return next((name for name, _ in _limits(base_model(model).config)), "")


def check_length(model: Any, longest: int) -> None:
    """Refuse sequences beyond :func:`length_limit`."""
    limit = length_limit(model)
    if limit is not None and longest > limit:
        raise ValueError(
            f"a sequence of {longest} tokens, but {rope_type(model)} rotary embeddings of "
            f"{type(base_model(model)).__name__} change with the length beyond {limit}: the result would depend on the "
            "other sequences of the batch. Keep prompt and completion within that"
        )


def _limits(config: Any) -> Iterable[tuple[str, int]]:
    text = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]  # one set for each kind of layer
    for entry in nested or [parameters]:
        kind = str(entry.get("rope_type", entry.get("type", "default")))
        if kind == "longrope":
            yield kind, int(entry.get("original_max_position_embeddings") or text.original_max_position_embeddings)
        elif "dynamic" in kind:
            yield kind, int(text.max_position_embeddings)


WITHOUT_TEXT = "rlhf_without_text"
"""Buffer of a head, ids whose logits are ``-inf``; it is not saved."""


def masked_bias(head: torch.nn.Linear) -> torch.Tensor:
    """A masked head's bias, with gradient: ``-inf`` for ids without a text."""
    bias_V = head.weight.new_zeros(head.weight.shape[0]) if head.bias is None else head.bias
    return bias_V.index_fill(0, head.get_buffer(WITHOUT_TEXT).to(bias_V.device), -torch.inf)


def on_device(values: Any, device: torch.device, dtype: torch.dtype | None = torch.long) -> torch.Tensor:
    """Values of the host as a tensor on a device, for which nothing waits; ``dtype`` None takes that of the values.

    Example:
        lengths_B = on_device([len(row) for row in rows], hidden_BLH.device)
    """
    return to_device_async(torch.tensor(values, dtype=dtype), device)


def to_device_async(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy to a device without waiting for it: a copy from pageable memory would wait for all earlier work."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def fetch_to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values as float64 on the CPU, each in its own shape."""
    if not tensors:
        return []
    flat = torch.cat([t.detach().reshape(-1).double() for t in tensors]).cpu()
    parts = flat.split([t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


Ids = Sequence[Sequence[int]]


def pad_right(rows: Ids, device: torch.device) -> torch.Tensor:
    """Return ``ids_BL``; the filler 0 is an arbitrary valid id that nothing looks at."""
    width = max(1, max(map(len, rows)))
    return on_device([[*row, *[0] * (width - len(row))] for row in rows], device)


def pad_rows(rows: Ids, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad; return ``(ids_BL, mask_BL)``, the mask int64 and made from the lengths."""
    ids_BL = pad_right(rows, device)
    sizes_B = on_device([len(row) for row in rows], device)
    return ids_BL, (torch.arange(ids_BL.shape[1], device=device)[None, :] < sizes_B[:, None]).long()


def grid_index(sizes: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """``(row_N, column_N)`` of the values of right-padded rows of these sizes, without waiting for the device."""
    pairs = [(b, t) for b, size in enumerate(sizes) for t in range(size)]
    table = on_device(pairs, device).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def pad_values(values_N: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Lay values, row after row, into ``[len(sizes), max(sizes)]``, zeros elsewhere; with gradient."""
    if values_N.shape != (sum(sizes),):
        raise ValueError(f"values of shape {tuple(values_N.shape)} for rows of {sum(sizes)}")
    empty_BT = values_N.new_zeros((len(sizes), max(sizes)))
    return empty_BT.index_put(grid_index(sizes, values_N.device), values_N)


def target_positions(prompts: Ids, completions: Ids, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(row_N, position_N)`` of the positions whose output predicts each completion token."""
    row_N, column_N = grid_index([len(c) for c in completions], device)
    return row_N, column_N + on_device([len(p) - 1 for p in prompts], device)[row_N]


def _inputs(prompts: Ids, completions: Ids) -> list[list[int]]:
    """Prompt and completion, less the last token, whose output predicts nothing."""
    return [[*p, *c[:-1]] for p, c in zip(prompts, completions, strict=True)]


def padded_hidden(model: torch.nn.Module, prompts: Ids, completions: Ids) -> torch.Tensor:
    """Return ``hidden_NH`` for every completion token, row after row, with gradient."""
    device = next(model.parameters()).device
    ids_BL = pad_right(_inputs(prompts, completions), device)
    hidden_BLH = trunk_and_head(model).trunk(input_ids=ids_BL, use_cache=False).last_hidden_state
    return hidden_BLH[target_positions(prompts, completions, device)]


def padded_logits(model: torch.nn.Module, prompts: Ids, completions: Ids) -> torch.Tensor:
    """Return ``logits_NV`` from the model's own forward, for models that do not split."""
    device = next(model.parameters()).device
    rows, positions = target_positions(prompts, completions, device)
    logits_BLV = base_model(model)(input_ids=pad_right(_inputs(prompts, completions), device), use_cache=False).logits
    return logits_BLV[rows, positions]


def mask_ids_without_text(model: Any, ids: Collection[int]) -> None:
    """Give the head's rows that stand for none of the tokenizer's ``ids`` the logit ``-inf``, whatever calls the head;
    of a model that changes logits after the head (a cap), also those that it returns.
    """
    base, head = base_model(model), base_model(model).get_output_embeddings()
    rows = base.config.get_text_config().vocab_size if head is None else head.weight.shape[0]
    nameless = torch.tensor(sorted(set(range(rows)) - set(ids)), dtype=torch.long)
    for module in (head, base) if len(nameless) else ():
        if module is None or (module is base and _masked(base, nameless)):
            continue
        device = next(module.parameters()).device
        module.register_buffer(
            WITHOUT_TEXT, nameless if device.type == "meta" else nameless.to(device), persistent=False
        )
        module.register_forward_hook(_mask)


def _mask(module: torch.nn.Module, _: object, out: Any) -> Any:
    ids = module.get_buffer(WITHOUT_TEXT)
    if isinstance(out, torch.Tensor):
        return out.index_fill(-1, ids.to(out.device), -torch.inf)
    out.logits = out.logits.index_fill(-1, ids.to(out.logits.device), -torch.inf)
    return out


def _masked(model: Any, ids: torch.Tensor) -> bool:
    """Whether the model's own logits of these ids are ``-inf``; False where there are no weights to try it."""
    if next(model.parameters()).is_meta:
        return False
    probe_BL = torch.tensor(probe_ids(model)[:1], device=next(model.parameters()).device)
    with torch.no_grad(), quiet(model):
        return bool(model(input_ids=probe_BL, use_cache=False).logits[..., ids].isneginf().all())
