"""Log-probabilities of completions under a policy, with gradient. Each optimisation is tried once per model against its
plain equivalent, and used only if it agrees.

Suffixes: ``_B`` completions, ``_T`` completion tokens (right-padded grid), ``_N`` the same tokens flat, ``_H`` hidden.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from rlhf_core.models.last_token import can_pack
from rlhf_core.models.layers.chunked_head import head_logprobs, logits_logprobs
from rlhf_core.models.layers.packing import packed_hidden
from rlhf_core.models.layers.prefix_sharing import distinct, shared_hidden
from rlhf_core.models.layers.trunk_and_head import (
    Ids,
    agree,
    base_model,
    check_length,
    checkpointing,
    grid_index,
    has_linear_head,
    on_device,
    padded_hidden,
    padded_logits,
    probe_ids,
    quiet,
    trunk_and_head,
    trunk_called_once,
)
from rlhf_core.types.errors import ModelError

log = logging.getLogger("rlhf.models")


@dataclass(frozen=True, slots=True)
class ForwardOptions:
    """The optimisations of :func:`completion_logprobs`; a model may allow fewer."""

    share_prefix: bool = True
    packing: bool = True
    chunked_head: bool = True

    def without(self, *names: str) -> ForwardOptions:
        """The same with some switched off."""
        return replace(self, **dict.fromkeys(names, False))

    def both(self, other: ForwardOptions) -> ForwardOptions:
        """Those that are on in both."""
        return self.without(*(name for name in self.names if name not in other.names))

    def alone(self, name: str) -> ForwardOptions:
        """Only one of them."""
        return replace(PLAIN, **{name: True})

    @property
    def names(self) -> list[str]:
        """Those that are on."""
        return [f.name for f in fields(self) if getattr(self, f.name)]

    @property
    def as_arguments(self) -> dict[str, Any]:
        """As ``completion_logprobs`` takes them."""
        return {"shared_prefix": self.share_prefix, "packed": self.packing, "chunked": self.chunked_head}


ALL, PLAIN = ForwardOptions(), ForwardOptions(False, False, False)


def allowed(model: Any, wanted: ForwardOptions, *, packing_required: bool = False) -> ForwardOptions:
    """The optimisations that are wanted and that the model allows; what it does not is logged."""
    name = type(base_model(model)).__name__
    if wanted.packing and not structure(model).pack:
        if packing_required:
            raise ModelError(
                f"{name} cannot be packed",
                why="its attention is not transformers' sdpa, or packed rows "
                "gave other hidden states than single sequences",
                fix="--set trainer.packing=auto, or model.attention=sdpa",
            )
        log.info("packing is off: %s does not allow it", name)
        wanted = wanted.without("packing")
    if wanted.share_prefix and not wanted.packing and checkpointing(model):
        log.warning(
            "prefix sharing is off: without packing it needs a cache, which gradient checkpointing forbids. "
            "Use --set trainer.packing=auto, or leave out model.gradient_checkpointing"
        )
        wanted = wanted.without("share_prefix")
    return wanted


@dataclass(frozen=True)
class Structure:
    """What one model allows."""

    split: bool
    """``head(trunk(ids))`` are the model's logits."""
    share: bool
    """A cached prompt may be shared by several completions (:mod:`rlhf_core.models.layers.prefix_sharing`)."""
    pack: bool
    """Sequences may lie end to end in one row (:mod:`rlhf_core.models.layers.packing`), prompts shared or not."""


_structures: weakref.WeakKeyDictionary[torch.nn.Module, Structure] = weakref.WeakKeyDictionary()


def structure(model: torch.nn.Module) -> Structure:
    """Return what the model's structure allows; the first call per model runs a few forwards on a few tokens."""
    base = base_model(model)
    if base not in _structures:
        _structures[base] = _examine(model)
    return _structures[base]


def _examine(model: torch.nn.Module) -> Structure:
    with torch.no_grad(), quiet(model):
        split = has_linear_head(model)
        share = split and _shareable(model) and _shared_agrees(model)
        pack = split and can_pack(trunk_and_head(model).trunk)
    if not split:
        log.warning(
            "%s: head(decoder(x)) are not its logits; full logits will be used (more memory)",
            type(base_model(model)).__name__,
        )
    return Structure(split, share, pack)


def _shareable(model: torch.nn.Module) -> bool:
    """Explicit positions are accepted, and every layer's past is keys and values (no recurrent state)."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    trunk = trunk_and_head(model).trunk
    cache = DynamicCache(config=trunk.config)
    plain = all(type(layer).__name__ in ("DynamicLayer", "DynamicSlidingWindowLayer") for layer in cache.layers)
    takes_positions = "position_ids" in inspect.signature(trunk.forward).parameters
    return plain and isinstance(cache.layers[0], DynamicLayer) and takes_positions


def _shared_agrees(model: torch.nn.Module) -> bool:
    short, long = probe_ids(model)
    prompts, completions = [short[:2], long[:4], short[:2]], [short[2:], long[4:], long[:3]]
    try:
        shared = shared_hidden(model, prompts, completions)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        log.info("prefix sharing is off for %s: %s", type(base_model(model)).__name__, error)
        return False
    return agree(shared, padded_hidden(model, prompts, completions), model)


Masks = Sequence[Sequence[bool] | None]
"""Per completion a bool per token, or None for every token."""


@dataclass(frozen=True, slots=True)
class CompletionLogprobs:
    """A right-padded grid over completion tokens; padded places are 0, and so are tokens that were not asked for."""

    logprobs_BT: torch.Tensor
    """float32, natural log, with gradient unless under ``torch.no_grad``."""
    entropy_BT: torch.Tensor | None
    """Nats; None unless asked for."""
    mask_BT: torch.Tensor
    """Bool, which places are tokens: from the lengths that were passed, never from ids."""
    hidden_NH: torch.Tensor | None = None
    """Hidden states that predict the tokens, row after row; None where the model does not split into trunk and head."""


def completion_logprobs(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    masks: Masks | None = None,
    shared_prefix: bool = True,
    packed: bool = True,
    chunked: bool = True,
) -> CompletionLogprobs:
    """Log-probability of each completion token given its prompt and the tokens before it.

    The result depends on nothing but each row's own tokens: not on the other rows, on padding or packing, or on
    whether prompts are shared (differences are rounding, about 1e-6).

    Args:
        model: a transformers causal LM, or one wrapped by peft.
        prompts: token ids, at least one each; equal prompts are forwarded once when sharing.
        completions: token ids; may be empty, not all of them.
        temperature: divides the logits; pass the sampler's.
        entropy: also return each distribution's entropy, with gradient.
        masks: of each completion, the tokens whose log-probability is wanted: the head runs on no others, which get 0
            (results of tools, in an episode); None in place of a mask, or of all masks, wants every token.
        shared_prefix: run every distinct prompt once for all its completions. Off by itself where the model
            cannot do it (recurrent states), or where without packing gradient checkpointing forbids a cache.
        packed: lay all sequences end to end in one row, without padding, where the model's attention allows it.
        chunked: run the head on a chunk of tokens at a time, never all ``[N, V]`` logits at once.

    Returns:
        :class:`CompletionLogprobs` with ``T = max(len(c))``.

    Raises:
        ValueError: lists or masks of different lengths, an empty prompt, no completion token at all, temperature <= 0,
            or a sequence beyond the length from which on rotary frequencies change
            (:mod:`rlhf_core.models.layers.trunk_and_head`).
    """
    _check(prompts, completions, temperature)
    check_length(model, max(len(p) + len(c[:-1]) for p, c in zip(prompts, completions)))
    device, sizes, wanted = next(model.parameters()).device, [len(c) for c in completions], _indices(completions, masks)
    mask_BT = torch.arange(max(sizes), device=device)[None, :] < on_device(sizes, device)[:, None]
    targets_N = on_device([t for c in completions for t in c], device)
    positions = grid_index(sizes, device)
    wanted_N = None if wanted is None else on_device(wanted, device)
    options: dict[str, Any] = {"temperature": temperature, "entropy": entropy}
    hidden_NH: torch.Tensor | None = None
    if (divided := base_model(model).__dict__.get("divided_logprobs")) is not None:  # by a group of ranks
        logprobs_N, entropy_N = divided(model, prompts, completions, targets_N, wanted, shared_prefix, packed, options)
    elif not structure(model).split:
        logits_NV = padded_logits(model, prompts, completions)
        logprobs_N, entropy_N = logits_logprobs(*_only(wanted_N, logits_NV, targets_N), **options)
    else:
        hidden_NH = completion_hidden(model, prompts, completions, shared_prefix, packed)
        head, (fed_NH, targets_N) = trunk_and_head(model).head, _only(wanted_N, hidden_NH, targets_N)
        if chunked:
            logprobs_N, entropy_N = head_logprobs(fed_NH, head, targets_N, **options)
        else:
            logprobs_N, entropy_N = logits_logprobs(head(fed_NH), targets_N, **options)
    positions = positions if wanted_N is None else (positions[0][wanted_N], positions[1][wanted_N])
    entropy_BT = None if entropy_N is None else _grid(entropy_N, positions, mask_BT)
    return CompletionLogprobs(_grid(logprobs_N, positions, mask_BT), entropy_BT, mask_BT, hidden_NH)


def _check(prompts: Ids, completions: Ids, temperature: float) -> None:
    if len(prompts) != len(completions):
        raise ValueError(f"{len(prompts)} prompts but {len(completions)} completions")
    if not all(len(p) for p in prompts):
        raise ValueError("a prompt has no tokens; a causal model needs at least one to predict from")
    if not any(len(c) for c in completions):
        raise ValueError("no completion has a token")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive for a log-probability, got {temperature}")


def _indices(completions: Ids, masks: Masks | None) -> list[int] | None:
    """Which completion tokens are wanted, counted row after row; None where every one is."""
    if masks is None or all(mask is None for mask in masks):
        return None
    rows = [[True] * len(c) if mask is None else list(mask) for c, mask in zip(completions, masks, strict=True)]
    if wrong := [(len(c), len(row)) for c, row in zip(completions, rows) if len(c) != len(row)]:
        raise ValueError(f"a completion of {wrong[0][0]} tokens has a mask of {wrong[0][1]}")
    return [n for n, wanted in enumerate(wanted for row in rows for wanted in row) if wanted]


def _only(
    wanted_N: torch.Tensor | None, rows_NX: torch.Tensor, targets_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows and targets that are wanted; the very same tensors where all are."""
    return (rows_NX, targets_N) if wanted_N is None else (rows_NX[wanted_N], targets_N[wanted_N])


def completion_hidden(
    model: torch.nn.Module, prompts: Ids, completions: Ids, shared_prefix: bool = True, packed: bool = True
) -> torch.Tensor:
    """Hidden states ``[N, H]`` that predict each completion token, row after row; the model must split."""
    if (watch := base_model(model).__dict__.get("watch_rows")) is not None:
        shared_prefix = watch(prompts, completions, packed and structure(model).pack, shared_prefix)
    if packed and structure(model).pack:
        return packed_hidden(model, prompts, completions, shared_prefix)
    repeats = len(distinct(prompts)[0]) < len(prompts)
    if shared_prefix and repeats and not (checkpointing(model) or trunk_called_once(model)) and structure(model).share:
        return shared_hidden(model, prompts, completions)
    return padded_hidden(model, prompts, completions)


def _grid(values_N: torch.Tensor, positions: tuple[torch.Tensor, torch.Tensor], mask_BT: torch.Tensor) -> torch.Tensor:
    return values_N.new_zeros(mask_BT.shape).index_put(positions, values_N)
