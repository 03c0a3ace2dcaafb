"""Rehearsals that the tests of planning share."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_plugin_preflight.memory import footprint

REHEARSED: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rehearsal finds depends on the run, the model's depth and number types, and the sizes: it is made once for
    all tests that plan this run, for one card or another."""
    for name in ("rehearse", "rehearse_sampling"):
        rehearse = getattr(footprint, name)

        def found(ctx: Any, sizes: Any, *rest: Any, _made: Any = rehearse, _name: str = name, **more: Any) -> Any:
            depth = len(footprint.decoder_layers(ctx.policy.model))
            types = sorted({str(p.dtype) for p in ctx.policy.model.parameters()})  # layers that FSDP gathers in 16 bits
            key = repr((_name, ctx.config, ctx.world_size, depth, types, sizes, more))
            if key not in REHEARSED:
                REHEARSED[key] = _made(ctx, sizes, *rest, **more)
            return REHEARSED[key]

        monkeypatch.setattr(footprint, name, found)
