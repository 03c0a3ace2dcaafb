"""Whose memory a run is checked against."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_plugin_preflight.memory.report import device_of


def test_only_the_cards_that_a_run_uses_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [30, 20, 10]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda n: (free[n], 40))
    run: Any = SimpleNamespace(strategy=SimpleNamespace(device="auto"))
    assert [device_of(run, ranks)[1] for ranks in (1, 2, 8)] == [30, 20, 10]
