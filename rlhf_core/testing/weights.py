"""Conformance of rollout engines that keep weights of their own: that versions arrive whole, and are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlhf_core.config.base import ComponentConfig
from rlhf_core.errors import RlhfError
from rlhf_core.testing.purity import left_alone
from rlhf_core.testing.report import require
from rlhf_core.types import Rollout, RolloutRequest, SamplingParams

Tensors = Mapping[str, torch.Tensor]
FIRST, MOVED, BACK, AGAIN = 7, 8, 10, 11
"""Versions that the kit sends; 9 never is."""
NEVER_SENT = 9
SCALE = 0.1
"""How far every weight is moved, as a part of itself."""


def trained_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those that a trainer hands over, cloned."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def moved_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The same, each of them another."""
    draw = torch.Generator().manual_seed(0)
    rows = trained_weights(model)
    return {n: p * (1 + SCALE * torch.randn(p.shape, generator=draw).to(p)) + SCALE / 10 for n, p in rows.items()}


def policy_logprobs(model: torch.nn.Module, rollout: Rollout, temperature: float, weights: Tensors) -> torch.Tensor:
    """Of a completion's tokens, by the policy's own forward.

    Args:
        model: the policy.
        rollout: prompt and completion.
        temperature: of the sampling.
        weights: instead of the policy's own.

    Returns:
        ``[T]``, on the CPU.
    """
    device = next(model.parameters()).device
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]], device=device)
    with torch.inference_mode():
        output = torch.func.functional_call(model, dict(weights), (ids,))
    logits_TV = output.logits[0, len(rollout.prompt_ids) - 1 : -1].float()
    chosen_T1 = ids[0, len(rollout.prompt_ids) :, None]
    return torch.log_softmax(logits_TV / temperature, -1).gather(-1, chosen_T1)[:, 0].cpu()


def largest_gap(model: torch.nn.Module, rollouts: Sequence[Rollout], temperature: float, weights: Tensors) -> float:
    """Largest difference of a logprob from those of some weights, in nats."""
    gaps = [
        (policy_logprobs(model, r, temperature, weights) - torch.tensor(r.logprobs_T)).abs().max() for r in rollouts
    ]
    return float(torch.stack(gaps).max())


def check_updates(
    config: ComponentConfig,
    engine: Any,
    model: torch.nn.Module,
    requests: Sequence[RolloutRequest],
    sampling: SamplingParams,
    tolerance: float,
) -> None:
    """Check ``update_weights``: all of a version arrives, nothing else is changed, and other versions are refused.

    Args:
        config: named in messages.
        engine: has the policy's weights as version :data:`FIRST`.
        model: the policy; trained mode off.
        requests: prompts.
        sampling: temperature above 0.
        tolerance: of a logprob, nats.

    Raises:
        AssertionError: a property does not hold.
    """
    own, given = trained_weights(model), moved_weights(model)
    sent = {name: tensor.clone() for name, tensor in given.items()}
    first = engine.generate(requests, sampling, FIRST)
    left_alone(config, engine.update_weights, "update_weights()", "version", "tensors")(MOVED, given)
    changed = _restored(model, own)
    require(not changed, config, "update_weights leaves the policy alone", f"it changed {changed[:3]}")
    for tensor in given.values():
        tensor.zero_()
    rollouts = engine.generate(requests, sampling, MOVED)
    named = {r.policy_version for r in rollouts} | {span.version for r in rollouts for span in r.versions}
    require(named == {MOVED}, config, "a rollout names the version that sampled it", f"{sorted(named)}")
    gap, old = (largest_gap(model, rollouts, sampling.temperature, weights) for weights in (sent, own))
    require(
        gap <= tolerance,
        config,
        "after update_weights completions come from all of the new weights",
        f"logprobs are up to {gap:.3f} nats from the new version's, {old:.3f} from those of the one before",
        "copy every tensor: what is passed may change afterwards; a head may share the embedding's weights",
    )
    _refuses(config, engine, requests, sampling)
    engine.update_weights(BACK, own)
    _same(
        config, "the weights of before give the completions of before", first, engine.generate(requests, sampling, BACK)
    )
    _check_release(config, engine, own, requests, sampling, first)


@torch.no_grad()
def _restored(model: torch.nn.Module, own: Tensors) -> list[str]:
    """Names of the policy's weights that were changed, which get their values back."""
    changed = [(name, p) for name, p in model.named_parameters() if name in own and not torch.equal(p, own[name])]
    for name, parameter in changed:
        parameter.copy_(own[name])
    return [name for name, _ in changed]


def check_progress(
    config: ComponentConfig, engine: Any, requests: Sequence[RolloutRequest], sampling: SamplingParams
) -> None:
    """Of an engine with ``on_ended``: it tells how many completions have ended."""
    if not hasattr(engine, "on_ended"):
        return
    ended: list[int] = []
    engine.on_ended = ended.append
    try:
        engine.generate(requests, sampling, FIRST)
    finally:
        engine.on_ended = None
    seen = f"{sum(ended)} of {len(requests)}"
    require(sum(ended) == len(requests), config, "on_ended is told of every completion once", seen)


def _refuses(
    config: ComponentConfig, engine: Any, requests: Sequence[RolloutRequest], sampling: SamplingParams
) -> None:
    """A version that was never sent."""
    try:
        engine.generate(requests[:1], sampling, NEVER_SENT)
    except RlhfError:
        return
    require(
        False,
        config,
        "a version that was not sent is refused",
        f"generate(..., {NEVER_SENT}) after update_weights({MOVED}, ...) answered",
        "compare policy_version with that of the last update_weights, and raise RlhfError",
    )


def _check_release(
    config: ComponentConfig,
    engine: Any,
    own: Tensors,
    requests: Sequence[RolloutRequest],
    sampling: SamplingParams,
    first: Sequence[Rollout],
) -> None:
    """Memory that is given back comes back."""
    if not callable(getattr(engine, "release_memory", None)):
        return
    version = BACK
    if engine.release_memory():
        version = AGAIN
        engine.update_weights(version, own)
    again = engine.generate(requests, sampling, version)
    _same(config, "after release_memory completions are the same; it returns True if weights went", first, again)


def _same(config: ComponentConfig, rule: str, want: Sequence[Rollout], got: Sequence[Rollout]) -> None:
    differ = [n for n, (a, b) in enumerate(zip(want, got, strict=True)) if a.completion_ids != b.completion_ids]
    require(not differ, config, rule, f"{len(differ)} of {len(want)} completions differ")
