"""A stand-in service, a key, and an empty cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.rewards import JudgeRequest
from rlhf_plugin_judge.config import AnthropicConfig
from rlhf_plugin_judge.stand_in import Service, StandIn, by_question

SECRET = "sk-ant-test-0123456789"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def serve() -> Iterator[Callable[..., StandIn]]:
    """``serve(faults={...}, answer=...)``: a service that runs until the test ends."""
    running: list[StandIn] = []

    def start(**settings: Any) -> StandIn:
        server = StandIn(Service(**{"answer": by_question, **settings}))
        running.append(server.__enter__())
        return server

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture
def config() -> Callable[..., AnthropicConfig]:
    """``config(server, ...)``: settings of a judge that asks it, with short waits."""

    def make(server: StandIn, **settings: Any) -> AnthropicConfig:
        quick = {"backoff_s": 0.01, "timeout_s": 20.0, "deadline_s": 60.0, "batch_poll_s": 0.01, "max_attempts": 30}
        return AnthropicConfig(base_url=server.url, **{**quick, **settings})

    return make


@pytest.fixture
def requests() -> Callable[[int], list[JudgeRequest]]:
    """``requests(n)``: n different questions with one system text."""

    def make(count: int) -> list[JudgeRequest]:
        return [
            JudgeRequest(f"q/{i}", ({"role": "user", "content": f"Question {i}"},), "You grade.", max_tokens=50)
            for i in range(count)
        ]

    return make
