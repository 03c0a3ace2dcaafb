"""The component kinds and the methods each must have. Imports nothing, so that listing is instant."""

from __future__ import annotations

from collections.abc import Mapping

METHODS: Mapping[str, tuple[str, ...]] = {
    "trainer": ("run",),
    "loss": ("__call__",),
    "advantage": ("estimate",),
    "reward": ("score",),
    "verifier": ("verify",),
    "judge": ("ask",),
    "agent": ("play",),
    "rollout": ("generate",),
    "strategy": ("prepare", "backward", "clip_grad_norm"),
    "dataset": ("rows",),
    "benchmark": ("evaluate",),
    "monitor": ("observe",),
    "tracker": ("log", "close"),
    "study": ("run",),
}
"""Kind -> methods a built component must have; checked once, at build."""

KINDS: tuple[str, ...] = tuple(METHODS)
