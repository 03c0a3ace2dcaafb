"""Properties of token losses, and what all kinds of losses share. Everything is float64, so that equal means equal."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from rlhf_core.config import ComponentConfig
from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_core.training.functional import reduce_loss
from rlhf_testing.report import require

B = TypeVar("B")
Loss = Callable[[Any], LossOutput]
POLICY = {"logprobs_BT", "chosen_B", "rejected_B", "logprobs_B"}
"""The fields that a loss is differentiated by."""


def changed(batch: B, change: Callable[[str, torch.Tensor], torch.Tensor]) -> B:
    """Apply ``change(name, tensor)`` to every tensor of a batch; the policy's are fresh leaves."""
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}  # pyright: ignore[reportArgumentType]
    new: dict[str, Any] = {k: None if v is None else change(k, v.detach().clone()) for k, v in fields.items()}
    return type(batch)(**{k: v.requires_grad_() if k in POLICY and v is not None else v for k, v in new.items()})


def check_pure(config: ComponentConfig, loss: Loss, batch: Any) -> None:
    """The same batch gives the same loss. That it is not written to is watched in every call (``left_alone``)."""
    first, second = loss(batch).loss.detach().clone(), loss(batch).loss.detach()
    rule, fix = "a loss is a function of its batch", "keep no state and draw no random numbers in the loss"
    require(torch.equal(first, second), config, rule, "two calls gave different values", fix)


REDUCTIONS = ("token_mean", "sequence_mean", "constant")


def make_token_batch(config: ComponentConfig, shift: float = 0.0, sign: float | None = None) -> TokenBatch:
    """Five sequences of 1 to 6 tokens. The policy is the behaviour policy, moved by ``shift`` nats at every token."""
    g = torch.Generator().manual_seed(7)

    def draw() -> torch.Tensor:
        return -torch.rand(5, 6, generator=g, dtype=torch.float64) * 3 - 0.2

    old, ref, entropy = draw(), draw(), -draw()
    mask = torch.arange(6)[None] < torch.tensor([6, 4, 1, 5, 3])[:, None]
    mask[0, 2] = False  # a tool's token in the middle
    size = torch.tensor([1.0, 0.5, 2.0, 1.5, 0.7], dtype=torch.float64)
    signs = (
        torch.tensor([1.0, -1, 1, -1, 1], dtype=torch.float64)
        if sign is None
        else torch.full((5,), sign, dtype=torch.float64)
    )
    advantages = (size * signs)[:, None].expand(5, 6).clone()
    labels = config.consumes == "labels"
    return TokenBatch(
        (old + shift).requires_grad_(),
        mask,
        None if labels else advantages,
        None if labels else old,
        ref,
        None if labels else old.clone(),
        entropy,
    )


def gradient(
    loss: Loss, batch: TokenBatch, mode: str = "token_mean", denominator: float | None = None
) -> tuple[torch.Tensor, LossOutput]:
    """Gradient of the reduced loss with respect to the logprobs, and the loss's output."""
    output = loss(batch)
    total = {
        "token_mean": float(batch.mask_BT.sum()),
        "sequence_mean": float(len(batch.mask_BT)),
        "constant": 8.0 * len(batch.mask_BT),
    }[mode]
    value = reduce_loss(output.loss, batch.mask_BT, mode, denominator or total)
    (gradient,) = torch.autograd.grad(value, batch.logprobs_BT, allow_unused=True)
    return torch.zeros_like(batch.logprobs_BT) if gradient is None else gradient, output


def number(value: Any) -> float:
    """A metric's sum or weight; it may still carry a gradient."""
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def check_token_loss(config: ComponentConfig, loss: Loss) -> None:
    """All properties but the clip's."""
    batch = make_token_batch(config, shift=1e-5)
    check_output(config, loss, batch)
    check_pure(config, loss, batch)
    check_direction(config, loss)
    check_mask(config, loss, batch)
    check_micro_batches(config, loss, batch)


def check_output(config: ComponentConfig, loss: Loss, batch: TokenBatch) -> None:
    """``LossOutput``, shape ``[B, T]``, finite, with a gradient, and metrics as (sum, weight)."""
    out: Any = loss(batch)
    rule = "a loss returns LossOutput"
    require(isinstance(out, LossOutput), config, rule, type(out).__name__, "return LossOutput(loss_BT, metrics)")
    shape = tuple(batch.logprobs_BT.shape)
    rule = "loss_BT is unreduced, one value per token"
    fix = "return it without mean(), sum() or masking: the core does that"
    require(tuple(out.loss.shape) == shape, config, rule, f"shape {tuple(out.loss.shape)} for a batch of {shape}", fix)
    require(
        bool(torch.isfinite(out.loss[batch.mask_BT]).all()), config, "the loss is finite", str(out.loss[batch.mask_BT])
    )
    rule = "the loss has a gradient"
    require(out.loss.requires_grad, config, rule, "loss_BT.requires_grad is False", "do not detach the logprobs")
    for name, row in out.metrics.items():
        good = isinstance(row, tuple) and len(row) == 2 and all(math.isfinite(number(v)) for v in row)
        rule = "a metric is a finite (sum, weight)"
        require(good, config, rule, f"{name}: {row!r}", "the core adds both over micro-batches, then divides")


def check_direction(config: ComponentConfig, loss: Loss) -> None:
    """A step down the gradient raises what was good and lowers what was bad."""
    for sign in (1.0, -1.0) if config.consumes == "token_advantages" else (1.0,):
        batch = make_token_batch(config, sign=sign)
        grad, _ = gradient(loss, batch)
        push = -(grad * batch.mask_BT).sum(-1) * sign
        what = (
            "a label"
            if config.consumes == "labels"
            else f"a completion with a {'positive' if sign > 0 else 'negative'} advantage"
        )
        rule = f"gradient descent {'raises' if sign > 0 else 'lowers'} the logprob of {what}"
        seen = f"-dloss/dlogprob summed over each sequence, times the sign: {push.tolist()}"
        require(bool((push > 0).all()), config, rule, seen, "check the sign: minimise -advantage * ratio")


def check_mask(config: ComponentConfig, loss: Loss, batch: TokenBatch) -> None:
    """Values at masked places, and more padding, change neither gradient nor metrics."""
    g = torch.Generator().manual_seed(8)
    noise = -torch.rand(batch.mask_BT.shape, generator=g, dtype=torch.float64) * 5
    noisy = changed(batch, lambda k, v: v if k == "mask_BT" else torch.where(batch.mask_BT, v, noise.to(v.dtype)))
    wider = changed(batch, lambda _, v: torch.cat([v, torch.zeros(len(v), 3, dtype=v.dtype)], 1))
    for mode in REDUCTIONS:
        grad, out = gradient(loss, batch, mode)
        stray = float((grad * ~batch.mask_BT).abs().max())
        rule = "masked places get no gradient"
        require(stray == 0, config, rule, f"{stray:.3g} ({mode})", "multiply by mask_BT before adding over tokens")
        for other, what in ((noisy, "values at masked places"), (wider, "more padding")):
            again, out2 = gradient(loss, other, mode)
            gap = float(((again[:, : grad.shape[1]] - grad) * batch.mask_BT).abs().max())
            rule, fix = f"{what} do not matter", "use mask_BT wherever tokens are added or averaged"
            require(gap < 1e-12, config, rule, f"the gradient moved by {gap:.3g} ({mode})", fix)
            same_metrics(config, out.metrics, out2.metrics, f"{what} do not change the metrics")


def same_metrics(config: ComponentConfig, a: Mapping[str, Any], b: Mapping[str, Any], rule: str) -> None:
    """Both have the same (sum, weight) rows."""
    for name in sorted({*a, *b}):
        pair = [tuple(number(v) for v in m[name]) if name in m else None for m in (a, b)]
        same = None not in pair and all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9) for x, y in zip(*pair))  # type: ignore[arg-type]
        require(same, config, rule, f"{name}: {pair[0]} and {pair[1]}", "give (sum over masked tokens, how many)")


def check_micro_batches(config: ComponentConfig, loss: Loss, batch: TokenBatch) -> None:
    """Parts of a batch, with the whole batch's denominator, add up to its gradient and metrics."""
    rows = len(batch.mask_BT)
    for mode in REDUCTIONS:
        whole, out = gradient(loss, batch, mode)
        denominator = {"token_mean": float(batch.mask_BT.sum()), "sequence_mean": float(rows), "constant": 8.0 * rows}[
            mode
        ]
        for size in (1, 2, 3):
            pieces = [
                gradient(loss, changed(batch, lambda _, v, a=a, n=size: v[a : a + n]), mode, denominator)
                for a in range(0, rows, size)
            ]
            gap = float((torch.cat([p for p, _ in pieces]) - whole).abs().max())
            seen = f"micro-batches of {size}: the gradient differs by {gap:.3g} ({mode})"
            fix = "let no sequence's loss depend on the others: no batch mean, no division by counts"
            require(gap < 1e-12, config, "micro-batches add up to the whole batch", seen, fix)
            total = {
                k: tuple(sum(number(o.metrics[k][i]) for _, o in pieces if k in o.metrics) for i in (0, 1))
                for k in out.metrics
            }
            same_metrics(config, out.metrics, total, "the metrics of micro-batches add up")


def check_past_clip(config: ComponentConfig, loss: Loss) -> None:
    """Where the ratio has already moved past the clip in the advantage's direction, the gradient is zero."""
    low = float(getattr(config, "clip_range", 0.2))
    high = float(getattr(config, "clip_range_high", None) or low)
    cases = [(1.0, math.log1p(high) + 0.5, f"1 + {high}")] + (
        [(-1.0, math.log1p(-low) - 0.5, f"1 - {low}")] if low < 1 else []
    )
    for sign, shift, side in cases:
        grad, _ = gradient(loss, make_token_batch(config, shift, sign))
        largest = float(grad.abs().max())
        seen = f"largest is {largest:.3g} at ratio {math.exp(shift):.3f}, advantage sign {sign:+.0f}"
        fix = "loss = -min(ratio * A, clamp(ratio) * A); or check_loss(config, clips=False) if it is not meant to"
        require(largest == 0, config, f"no gradient past {side}", seen, fix)
