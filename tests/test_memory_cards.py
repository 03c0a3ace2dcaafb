"""Whose memory a run is checked against, and which cards it may ask for."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_core.config import ConfigError
from rlhf_core.models import ModelConfig
from rlhf_plugin_preflight import cards as cards_module
from rlhf_plugin_preflight.cards import QUERY, check_cards
from rlhf_plugin_preflight.memory.report import device_of


def test_only_the_cards_that_a_run_uses_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver's tool, which makes no context on them."""
    free = [30, 20, 10]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    card = lambda n: SimpleNamespace(uuid=f"card-{n}", total_memory=40 << 20)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", card)
    lines = "".join(f"GPU-card-{n}, {amount}\n" for n, amount in enumerate(free))
    answer: Any = subprocess.CompletedProcess(QUERY, 0, lines)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: answer)
    run: Any = SimpleNamespace(strategy=SimpleNamespace(device="auto"))
    assert [device_of(run, ranks)[1] >> 20 for ranks in (1, 2, 8)] == [30, 20, 10]
    answer.stdout = "Failed to initialize NVML: Driver/library version mismatch"
    assert device_of(run, 2)[1] >> 20 == 40


def of(device: str, ranks: int, rollout: str | None = None) -> Any:
    engine = None if rollout is None else SimpleNamespace(name=rollout)
    config = SimpleNamespace(strategy=SimpleNamespace(device=device), rollout=engine, model=ModelConfig())
    return SimpleNamespace(config=config, world_size=ranks)


def test_a_run_is_refused_the_cards_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rlhf")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    monkeypatch.setattr(cards_module, "cards_here", lambda: 2)
    check_cards(of("cpu", 3))
    check_cards(of("auto", 1, "vllm"))
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ
    check_cards(of("auto", 2))
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert not caplog.messages
    with pytest.raises(ConfigError, match="3 processes on this machine need as many cards, and torch sees 2"):
        check_cards(of("auto", 3))
    check_cards(of("auto", 1))
    assert caplog.messages == ["this run uses 1 of 2 cards: --nproc 2 uses all of them"]
    monkeypatch.setattr(cards_module, "cards_here", lambda: 0)
    check_cards(of("auto", 3))


@pytest.mark.parametrize(("device", "cards", "refused"), [("auto", 0, True), ("cpu", 1, True), ("auto", 1, False)])
def test_inputs_of_layers_are_offloaded_from_a_card(
    device: str, cards: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cards_module, "cards_here", lambda: cards)
    ctx = of(device, 1)
    ctx.config.model = ModelConfig(gradient_checkpointing="offload")
    with pytest.raises(ConfigError, match="offload without a card") if refused else nullcontext():
        check_cards(ctx)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_a_card_that_is_asked_for_is_needed(call: Callable[..., Any]) -> None:
    words = ("train", "--algo", "sft", "--set", "strategy.device=cuda", "--dry-run")
    ran = call(*words)
    assert ran.code == 2
    assert "strategy.device=cuda, and there is no card" in ran.err
