"""Engines that take updates and engines that do not, and what the canary sees of them.

``python plugins/rlhf-plugin-vllm/tests/canary_figures.py`` prints what the thresholds of ``arrival.py`` were chosen
from: the pocket model, every weight moved by ``lr`` times a sign in each update, and the native engine over a second
copy that computes in bfloat16 or float32.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlhf_core.config import BuildContext, RlhfError
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_vllm.arrival import Change, PersistentDrift, noise_of
from rlhf_plugin_vllm.canary import Canary, Sent
from rlhf_testing import policy_context

KEPT = {"nothing": (), "everything": ("",), "head": ("lm_head.",), "embedding": ("model.embed_tokens.",)}
KEPT["one layer"] = ("model.layers.1.",)
"""What an engine does not take, by the beginnings of its weights' names."""


@dataclass(frozen=True)
class Updates:
    """A sequence of updates of every weight.

    ``same_way`` moves each weight the same way every time, otherwise the way is drawn anew and leans to one side.
    """

    lr: float
    same_way: bool = False
    seed: int = 0

    def of(self, model: Any) -> Iterator[dict[str, torch.Tensor]]:
        """The weights of version 0, 1, and so on."""
        draw = torch.Generator().manual_seed(self.seed)
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        way = {name: torch.randn(p.shape, generator=draw) for name, p in weights.items()}
        while True:
            yield weights
            noise = {n: torch.randn(w.shape, generator=draw) * (not self.same_way) for n, w in way.items()}
            lean = 1.0 if self.same_way else 0.3
            weights = {n: p + self.lr * (lean * way[n] + noise[n]).sign() for n, p in weights.items()}


class Engine:
    """The native engine over a copy of the policy that computes in a number type of its own.

    Args:
        ctx: has the policy, whose head is the embedding.
        dtype: such as ``bfloat16``.
        kept: beginnings of the names of weights that later versions do not change.
    """

    def __init__(self, ctx: BuildContext, dtype: str, kept: Sequence[str] = ()) -> None:
        policy = ctx.policy
        self.model = copy.deepcopy(policy.model).to(getattr(torch, dtype))
        self.model.lm_head.weight = torch.nn.Parameter(self.model.lm_head.weight.detach().clone())  # not tied
        self.native, self.kept, self.dtype = NativeEngine(self.model, policy.tokenizer, policy.context), kept, dtype
        self.versions = 0

    def take(self, weights: dict[str, torch.Tensor]) -> None:
        """A version; the first arrives whole."""
        whole = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
        kept = tuple(self.kept) if self.versions else ()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if not name.startswith(kept):
                    parameter.copy_(whole[name])
        self.versions += 1

    def answers(self, canary: Canary) -> Any:
        """Its completions."""
        return self.native.generate(canary.requests, canary.sampling, 0)


def versions(ctx: BuildContext, engine: Engine, updates: Updates, count: int) -> Iterator[tuple[Sent, Any]]:
    """What the engine was sent and what it answers, for so many versions after the first."""
    canary = Canary(ctx.policy, ctx.policy.context, 1.0)
    for version, weights in zip(range(count + 1), updates.of(ctx.policy.model)):
        engine.take(weights)
        yield Sent("engine", engine.dtype, version, weights, first=version == 0), engine.answers(canary)


def first_refused(ctx: BuildContext, engine: Engine, updates: Updates, most: int) -> int | None:
    """The first version that a canary refuses; None if it takes all."""
    canary = Canary(ctx.policy, ctx.policy.context, 1.0)
    for sent, rollouts in versions(ctx, engine, updates, most):
        try:
            canary.check(sent, rollouts, None)
        except RlhfError:
            return sent.version
    return None


def measured(ctx: BuildContext, engine: Engine, updates: Updates, count: int) -> np.ndarray:
    """For each version after the first five ratios, ``[versions, 5]``: the trainer's change / noise of the first
    version, the engine's change / the trainer's, the engine's distance to the sent version / to the one before, noise /
    that of the first version, and the lasting part of it / noise of the first."""
    canary = Canary(ctx.policy, ctx.policy.context, 1.0)
    rows, before, first, lasting = [], {}, 0.0, PersistentDrift()
    for sent, rollouts in versions(ctx, engine, updates, count):
        tokens = canary.tokens(sent, rollouts)
        first = first or noise_of(tokens)
        now = {(t.context, t.token): t for t in tokens}
        lasts = lasting.add(now) / first
        changes = [Change(before[t.context, t.token], t) for t in tokens if (t.context, t.token) in before]
        if changes:
            rows.append([*_ratios(changes, first), noise_of(tokens) / first, lasts])
        before = now
    return np.array(rows)


def _ratios(changes: Sequence[Change], noise: float) -> list[float]:
    spread = sum(c.now.spread for c in changes)
    trainer, engine = (sum(abs(v) for v in rows) for rows in zip(*((c.trainer, c.engine) for c in changes)))
    to_sent = sum(abs(c.now.engine - c.now.trainer) for c in changes)
    to_older = sum(abs(c.now.engine - c.before.trainer) for c in changes)
    return [trainer / spread / noise, engine / trainer, to_sent / to_older]


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    ctx = policy_context()
    print("An engine that takes every update; least, median and largest over 60 versions, each beside the one before")
    for dtype in ("bfloat16", "float32"):
        for updates in (Updates(1e-5), Updates(1e-5, same_way=True), Updates(3e-4)):
            rows = np.quantile(measured(ctx, Engine(ctx, dtype), updates, 60), [0, 0.5, 1], axis=0)
            names = ("change/noise", "engine/trainer", "to sent/to older", "noise/first", "lasting/first")
            text = "; ".join(f"{n} {a:.3g} {b:.3g} {c:.3g}" for n, (a, b, c) in zip(names, rows.T))
            print(f"  {dtype}, {updates}: {text}", flush=True)
    print("The version at which an engine that keeps something is refused, of 60")
    for dtype in ("bfloat16", "float32"):
        for updates in (Updates(1e-5, same_way=True), Updates(3e-4), Updates(3e-4, same_way=True)):
            refused = {what: first_refused(ctx, Engine(ctx, dtype, kept), updates, 60) for what, kept in KEPT.items()}
            print(f"  {dtype}, {updates}: {refused}", flush=True)


if __name__ == "__main__":
    main()
