"""How the memory of a run is counted phase by phase, on a CPU and, by torch's functions replaced, on a card."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf_core.training.learner import Learner
from scripts.bench import memory_plan_cuda
from scripts.bench._memory_run import Phases, of_all_ranks
from scripts.bench._memory_truth import CardMemory, LiveTensors

MIB = 2**20


class Allocator:
    """torch.cuda's counters, of one card."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, card: int) -> None:
        self.now = self.peak = 0
        self.card, self.ready = card, False
        for name in ("init", "reset_peak_memory_stats", "max_memory_allocated", "max_memory_reserved"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def init(self) -> None:
        self.ready = True

    def give(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        assert self.ready, "torch refuses before CUDA is there"
        assert device == self.card
        self.peak = self.now

    def max_memory_allocated(self, device: Any = None) -> int:
        assert device == self.card
        return self.peak

    def max_memory_reserved(self, device: Any = None) -> int:
        return self.max_memory_allocated(device) + MIB


def test_peaks_of_phases_are_of_what_happens_in_them() -> None:
    """Nested phases, too: the forward check runs inside an update."""
    truth = LiveTensors()
    phases = Phases(truth)

    def update() -> None:
        kept = torch.ones(2 * MIB)
        del kept
        rollout()

    def rollout_inside() -> None:
        assert torch.ones(MIB).sum() > 0

    rollout = phases.wrapped("rollout", rollout_inside)
    with truth.counting(), phases.active():
        before = torch.ones(MIB // 4)
        phases.wrapped("update", update)()
        torch.zeros(3 * MIB // 4)
    held = before.numel() * 4
    (kind, peaks), *others = phases.peaks.items()
    assert (kind, others) == ("measured", [])
    assert peaks["update"] == held + 8 * MIB
    assert peaks["rollout"] == pytest.approx(held + 4 * MIB, abs=64)
    assert peaks["other"] == held + 3 * MIB
    assert peaks["checkpoint"] == 0


def test_on_a_card_the_allocator_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator, truth = Allocator(monkeypatch, card=1), CardMemory(1)
    phases = Phases(truth)

    def update_sums(self: Any) -> None:
        allocator.give(5 * MIB)
        allocator.give(-4 * MIB)

    monkeypatch.setattr(Learner, "update_sums", update_sums)
    with truth.counting(), phases.active():
        allocator.give(2 * MIB)
        Learner.update_sums(None)  # pyright: ignore
        allocator.give(-MIB)
    assert phases.peaks["measured"] == {"other": 3 * MIB, "update": 7 * MIB, "rollout": 0, "checkpoint": 0}
    assert phases.peaks["reserved"]["update"] == 8 * MIB


def test_the_rank_that_has_most_counts_in_each_phase() -> None:
    ranks = [{"measured": {"update": 3, "other": 1}}, {"measured": {"update": 2, "other": 4}}]
    assert of_all_ranks(ranks) == {"measured": {"update": 3, "other": 4}}


def test_cards_have_the_rows_of_a_cpu_and_an_offloaded_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_plan_cuda.cases() == {}
    monkeypatch.setenv("RLHF_BENCH_MODEL", "models/Half-B")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    one = memory_plan_cuda.cases()
    assert "Half-B: grpo, one process" in one
    assert not any("FSDP" in name or "DDP" in name for name in one)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert {"Half-B: dpo, FSDP", "Half-B: grpo, FSDP, offload"} <= set(memory_plan_cuda.cases())
    names, settings, ranks, device = memory_plan_cuda.arguments("m", memory_plan_cuda.rows()["grpo, FSDP, offload"])
    assert (names["model"], ranks, device) == ("m", 2, "cuda")
    assert settings[-1] == "strategy.device=cuda", "the last of a key counts"
    planned = {"load": 90, "rollout": 95, "update": 110, "checkpoint": 100}
    measured = {"other": 90, "rollout": 100, "update": 100, "checkpoint": 100}
    found = {"plan": planned, "measured": measured, "reserved": {"update": 120}}
    monkeypatch.setattr(memory_plan_cuda, "plan_and_measure", lambda *arguments: found)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H100")
    result = one["Half-B: grpo, one process"]()
    assert (result["peak_error"], result["phase_errors"]["rollout"]) == (0.1, -0.05)
    assert result["card"] == "H100"
