"""Engines over stand-in servers."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.config import BuildContext
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_plugin_vllm.transport import Groups
from rlhf_testing import policy_context

_spec = importlib.util.spec_from_file_location("stand_in", Path(__file__).with_name("stand_in.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
StandIn: Any = _module.StandIn
LosingProxy: Any = _module.LosingProxy


@pytest.fixture
def ctx() -> BuildContext:
    return policy_context()


@pytest.fixture
def serve(ctx: BuildContext) -> Iterator[Callable[..., Any]]:
    """Starts stand-in servers."""
    started: list[Any] = []

    def start(policy: Any = None, **options: Any) -> Any:
        started.append(StandIn(policy or ctx.policy, **options))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def before() -> Iterator[Callable[[Any], Any]]:
    """Puts a proxy before a server, which loses the answers that it is told to."""
    started: list[Any] = []

    def put(server: Any) -> Any:
        started.append(LosingProxy(server.url))
        return started[-1]

    yield put
    for proxy in started:
        proxy.close()


@pytest.fixture
def engine_of(ctx: BuildContext) -> Iterator[Callable[..., VllmEngine]]:
    """An engine over servers, with the policy's weights as version 0."""
    built: list[VllmEngine] = []

    def build(*servers: Any, context: BuildContext | None = None, sync: bool = True, **settings: Any) -> VllmEngine:
        chosen = context or ctx
        config = VllmConfig(urls=tuple(s.url for s in servers), **settings)
        engine = VllmEngine(config, chosen)
        built.append(engine)
        if sync:
            engine.update_weights(0, weights_of(chosen.policy.model))
        return engine

    yield build
    for engine in built:
        engine.close()


@contextlib.contextmanager
def sent_by_group(engine: VllmEngine) -> Generator[None, None, None]:
    """Let an engine's servers be sent weights by gloo, in buckets of 64 KiB."""
    before, groups = engine._transport, Groups("gloo", 1 << 16, torch.device("cpu"))
    for transport in (groups, before):
        engine._transport = transport
        for replica in engine.fleet.replicas:
            replica.transport = transport
        if transport is groups:
            yield


def weights_of(model: Any) -> dict[str, Any]:
    """As the core hands them over."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
