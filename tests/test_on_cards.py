"""What only cards have, by torch's functions replaced: NCCL's deadline, generators of several cards, copies to them,
gradients that repeat."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rlhf_core.distributed import peers as peers_module
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.distributed.peers import RankMonitor, waiting
from rlhf_core.models import random_state
from rlhf_core.models.layers import packing, segments
from rlhf_core.models.layers.trunk_and_head import on_device
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training import learner as learner_module
from rlhf_core.training.learner import Learner
from rlhf_core.training.policy_module import PolicyModule
from rlhf_core.types.errors import ConfigError
from rlhf_plugin_grpo.loss import GrpoClip
from tests.trainers.test_learner import items, model


@pytest.mark.parametrize("nccl", [True, False])
def test_who_is_missing_is_said_before_nccl_ends_the_process(
    nccl: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its watchdog ends the process at the deadline; gloo raises, and then it is said."""
    monkeypatch.setattr(peers_module, "BEAT_S", 0.05)
    monkeypatch.setattr(peers_module, "EARLY_S", 0.8)
    monkeypatch.setattr(peers_module, "LAST_S", 0.2)
    store = dist.HashStore()  # pyright: ignore
    here, other = RankMonitor(store, 0, 2), RankMonitor(store, 1, 2)
    here.ended_at_deadline = nccl
    try:
        with waiting("adding gradients", 0, here, 1.0):
            time.sleep(0.1)
        assert not caplog.records, "it came in time"
        with waiting("adding gradients", 0, here, 1.0):
            time.sleep(1.0)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == nccl
        if nccl:
            assert "s for the others (adding gradients); at 1 s NCCL ends this process" in said[0]
            assert "rank 1 is in" in said[0]
            assert said[0].count("test_on_cards.py") == 2, "both stacks"
    finally:
        here.close()
        other.close()


def test_generators_of_more_cards_than_there_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[int, str] = {}
    state = {**random_state.rng_state(), "cuda": ["of card 0", "of card 1"]}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda of_card, card: given.update({card: of_card}))
    random_state.set_rng_state(state)
    assert given == {0: "of card 0"}


def test_values_go_to_a_card_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """From pageable memory torch's copy waits for all that the card has still to do."""
    calls: list[tuple[str, object]] = []

    def pinned(self: torch.Tensor) -> torch.Tensor:
        calls.append(("pinned", self.tolist()))
        return self

    def to(self: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        calls.append((str(device), non_blocking))
        return self

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    monkeypatch.setattr(torch.Tensor, "to", to)
    assert on_device([1, 2], torch.device("cuda", 1), torch.int32).dtype == torch.int32
    assert calls == [("pinned", [1, 2]), ("cuda:1", True)]


@pytest.mark.parametrize("wanted", [True, False])
def test_attention_on_a_card_adds_gradients_in_one_order(wanted: bool) -> None:
    """Its kernels pass over a setting that only warns: of long sequences an H100 then adds in any order."""

    def strict() -> bool:
        return (
            torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
        )

    torch.use_deterministic_algorithms(wanted, warn_only=True)
    try:
        with segments.repeatable_gradients(torch.device("cuda", 0)):
            assert strict() == wanted
        with segments.repeatable_gradients(torch.device("cpu")):
            assert not strict()
        assert torch.are_deterministic_algorithms_enabled() == wanted
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("cumsum_cuda_kernel does not have a deterministic implementation, but you set ...", ConfigError),
        ("CUDA error: an illegal memory access", RuntimeError),
    ],
)
def test_an_operation_without_a_gradient_that_repeats_is_named(message: str, expected: type[Exception]) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        card = torch.device("cuda", 0)
        with pytest.raises(expected, match=message[:20]) as raised, segments.repeatable_gradients(card):
            raise RuntimeError(message)
        assert ("--set deterministic=false" in str(raised.value)) is (expected is ConfigError)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_attention_backend_is_tried_with_gradients_that_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    @contextmanager
    def noted(device: torch.device) -> Iterator[None]:
        order.append(f"{device} begins")
        yield
        order.append("ends")

    def attend(*arguments: Any) -> torch.Tensor:
        order.append("attends")
        return segments.attend_by_segment(*arguments)

    monkeypatch.setattr(packing, "repeatable_gradients", noted)
    backend = packing.AttentionBackend("by segment", lambda row, window, device: row, attend)
    assert packing.refusal(backend, packing.Kind(torch.device("cpu"), torch.float32, 2, 1, 16, False, True)) is None
    assert order == ["cpu begins", "attends", "ends"] * 2


def test_an_update_takes_gradients_that_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    @contextmanager
    def noted(device: torch.device) -> Iterator[None]:
        order.append(f"{device} begins")
        yield
        order.append("ends")

    class Noting(LocalStrategy):
        def backward(self, loss: torch.Tensor) -> None:
            order.append("backward")
            super().backward(loss)

    monkeypatch.setattr(learner_module, "repeatable_gradients", noted)
    learner = Learner(PolicyModule(model()), GrpoClip(0.2, 0.2), Noting(), OnlineTrainerConfig(name="t"), 1)
    learner.update(items())
    assert order[:3] == ["cpu begins", "backward", "ends"]
    assert order == order[:3] * (len(order) // 3)
