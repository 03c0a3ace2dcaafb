"""The benchmark of vLLM: what it refuses, and what it makes of its rounds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.bench import _processor, decoding, vllm
from scripts.bench._sides import Side, as_folder
from scripts.bench._work import PROBLEMS, find, numbered


def test_a_size_is_three_numbers() -> None:
    assert vllm.size_of("64x8x256") == (64, 8, 256)
    for text in ("64x8", "64x8x0", "axbxc"):
        with pytest.raises(SystemExit, match="such as 64x8x256"):
            vllm.size_of(text)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="this environment has no no_such_package"):
        vllm.lacking("pytest", "no_such_package")
    monkeypatch.setenv("RLHF_VLLM_MODEL", str(tmp_path))
    with pytest.raises(SystemExit, match="set RLHF_VLLM_MODEL"):
        vllm.lacking("pytest")
    (tmp_path / "config.json").write_text("{}")
    vllm.lacking("pytest")


def test_speeds_are_compared_round_by_round() -> None:
    """Tokens are those that were sampled: completions end where they end."""
    rounds = {
        "native": [
            vllm.Round(0.0, 2.0, 0.0, 0, 100),
            vllm.Round(0.0, 1.0, 0.0, 0, 100),
            vllm.Round(0.0, 4.0, 0.0, 0, 80),
        ],
        "vllm_colocated": [
            vllm.Round(0.5, 1.0, 0.1, 9, 100),
            vllm.Round(0.7, 1.0, 0.2, 9, 120),
            vllm.Round(0.6, 1.0, 0.3, 9, 100),
        ],
    }
    found = vllm.summary(rounds)
    assert found["native"]["tokens_per_second_by_round"] == [50.0, 100.0, 20.0]
    assert "times_native" not in found["native"]
    assert found["vllm_colocated"] == {
        "tokens_per_second": 100.0,
        "tokens_per_second_by_round": [100.0, 120.0, 100.0],
        "tokens_by_round": [100, 120, 100],
        "times_native": 2.0,
        "times_native_by_round": [2.0, 1.2, 5.0],
        "sync_pause_seconds": 0.6,
        "release_seconds": 0.2,
        "bytes_per_sync": 9,
    }


def test_engines_take_turns_in_another_order_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[tuple[str, int, int]] = []

    def one_round(engine: str, report: Any, policy: Any, size: vllm.Size, version: int) -> vllm.Round:
        turns.append((engine, size.tokens, version))
        return vllm.Round(0.0, 1.0, 0.0, 0, size.tokens)

    monkeypatch.setattr(vllm, "one_round", one_round)
    model = torch.nn.Linear(1, 1)
    before = model.weight.detach().clone()

    class Policy:
        pass

    policy: Any = Policy()
    policy.model = model
    taken = vllm.in_turns({"a": ("a", {}), "b": ("b", {})}, policy, vllm.Size(1, 1, 64), 2)
    assert turns == [("a", 8, 0), ("b", 8, 0), ("b", 64, 1), ("a", 64, 1), ("a", 64, 2), ("b", 64, 2)]
    assert [round_.tokens for round_ in taken["a"]] == [64, 64], "the warm-up is not counted"
    assert not torch.equal(model.weight, before), "every round has weights of its own"


def test_more_prompts_than_problems_are_all_different() -> None:
    assert numbered(2) == PROBLEMS[:2]
    assert len(set(numbered(64))) == len(find("64x8x256").prompts) == 64


def test_a_card_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.cuda.is_available() or _processor.device_name() == _processor.processor()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    class Card:
        name, total_memory = "NVIDIA H100", 80 * 2**30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: Card())
    assert _processor.device_name() == "NVIDIA H100, 80 GiB"


@pytest.mark.slow
def test_a_side_of_decoding_samples_what_its_case_says(tmp_path: Path) -> None:
    folder = str(as_folder("pocket"))
    command = [sys.executable, "-m", "scripts.bench._decoding_side", "native", "2x3x12", "float32", folder, "1"]
    side = Side("native", command, tmp_path / "native", 1)
    side.step()
    side.close()
    assert side.steps[0]["tokens"] == 2 * 3 * 12


def test_decoding_needs_the_python_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLHF_VLLM_PYTHON", raising=False)
    with pytest.raises(SystemExit, match="make_vllm_venv"):
        decoding.cases()["1 x 1"]()
