"""`rlhf doctor --device` tries vLLM with a run of two steps: its weight sync, its canary, its logprobs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_plugin_preflight.device.runs import _Trainings

_spec = importlib.util.spec_from_file_location("server_process", Path(__file__).with_name("server_process.py"))
assert _spec is not None
assert _spec.loader is not None
servers: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(servers)


@pytest.mark.slow
def test_a_weight_sync_and_the_canary(tmp_path: Path) -> None:
    (tmp_path / "servers").mkdir()
    python = servers.environment(tmp_path / "servers")
    train = _Trainings("pocket", torch.device("cpu"), tmp_path)
    space = "rollout.environment.VLLM_CPU_KVCACHE_SPACE='1'"  # a server takes most of main memory without
    row = train.engine(["rollout.name=vllm", f"rollout.python={python}", space, "threads=1"])
    assert row.verdict == "agrees", row.detail
    assert "2 weight syncs, canary to " in row.detail
    assert "logprobs after an update to " in row.detail
    assert not (tmp_path / "engine").exists()


@pytest.mark.long
def test_an_engine_that_cannot_be_had_fails(tmp_path: Path) -> None:
    train = _Trainings("pocket", torch.device("cpu"), tmp_path)
    row = train.engine(["rollout.name=vllm", f"rollout.python={tmp_path / 'none'}"])
    assert row.verdict == "failed"
    assert "rlhf train ended with code 2" in row.detail
