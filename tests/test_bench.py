"""The benchmark command: every case is on disk as soon as it is measured, and is not measured twice."""

from __future__ import annotations

import json
import sys
import types
from functools import partial
from pathlib import Path

import pytest
import torch

from rlhf_core.models.layers.matmul import use_matmul_backend
from scripts.bench import _processor, episode_schedules, kv_reuse, strangers_path
from scripts.bench.__main__ import RECORD, measure, names
from scripts.bench._work import CASES, find


def test_an_interrupted_record_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    drawn: list[dict[str, object]] = []

    def case(name: str, fails: bool = False) -> object:
        def work() -> dict[str, int]:
            ran.append(name)
            if fails:
                raise KeyboardInterrupt
            return {"tokens": len(ran)}

        return work

    toy = types.ModuleType("scripts.bench.toy")
    monkeypatch.setitem(sys.modules, "scripts.bench.toy", toy)
    monkeypatch.setattr(toy, "finish", lambda results, folder: drawn.append(results), raising=False)
    monkeypatch.setattr(toy, "cases", lambda: {"x": case("x"), "y": case("y", fails=True)}, raising=False)
    with pytest.raises(KeyboardInterrupt):
        measure("toy", tmp_path, "abc", again=False)
    monkeypatch.setattr(toy, "cases", lambda: {"x": case("x"), "y": case("y")})
    measure("toy", tmp_path, "abc", again=False)
    assert ran == ["x", "y", "y"]
    assert "x: recorded already at abc" in capsys.readouterr().out
    assert drawn == [{"x": {"tokens": 1}, "y": {"tokens": 3}}]
    record = json.loads((tmp_path / "toy.json").read_text())
    assert record["cases"]["y"]["results"] == {"tokens": 3}
    measure("toy", tmp_path, "def", again=False)
    assert ran == ["x", "y", "y", "x", "y"], "another commit is measured anew"
    measure("toy", tmp_path, "ghi", again=False, missing=True)
    assert len(ran) == 5, "nothing is missing"
    measure("toy", tmp_path, "ghi", again=True, only="y")
    assert ran[5:] == ["y"], "the other case is left as it was"
    monkeypatch.setattr(toy, "cases", lambda: {"x": case("x", fails=True), "y": case("y")})
    with pytest.raises(KeyboardInterrupt):
        measure("toy", tmp_path, "ghi", again=True)
    cases = json.loads((tmp_path / "toy.json").read_text())["cases"]
    assert [(c["commit"], c["results"]["tokens"]) for c in cases.values()] == [("def", 4), ("ghi", 6)]
    for machine in (c["machine"] for c in cases.values()):
        assert machine["cores"]
        assert machine["processor"].endswith(torch.backends.cpu.get_cpu_capability())
        assert machine["product_gflops_of_one_core"]["torch"] > 0


def test_a_processor_is_named_with_its_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual machines call several generations by one name."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("vendor_id\t: X\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n")
    monkeypatch.setattr(_processor, "CPUINFO", cpuinfo)
    assert _processor.processor().startswith("AMD EPYC (family 25, model 17), ")


def test_what_is_recorded_exists_and_both_sides_can_find_their_work() -> None:
    assert set(RECORD) <= set(names())
    for case, work in CASES.items():
        assert find(case) is work
        assert work.rows % work.micro_batch == 0, "the other side accumulates whole micro-batches"
        assert all(work.shortest <= n <= work.longest for n in work.lengths())
    assert find("2x4x128").lengths() == [128] * 8


def test_the_strangers_path_is_the_tutorials(tmp_path: Path) -> None:
    steps = strangers_path.steps_of((strangers_path.ROOT / "docs/tutorial.md").read_text())
    assert [s.language for s in steps].count("python") == 2
    trained = [s.command.split("--algo ")[1].split()[0] for s in steps if s.command.startswith("rlhf train")]
    assert trained == ["sft", "reward_model", "grpo"]
    assert not any("\\" in s.command for s in steps if s.language == "bash")
    env = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": str(tmp_path)}
    row = strangers_path.timed(strangers_path.Step("x", "echo no >&2; exit 3"), tmp_path, env)
    assert (row["rc"], row["said"]) == (3, "no\n")


def test_settings_are_keywords_of_the_measurement_and_stand_in_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = types.ModuleType("scripts.bench.toy")
    monkeypatch.setitem(sys.modules, "scripts.bench.toy", toy)
    monkeypatch.setattr(toy, "broken", lambda results: ["too many"] if results["rounds"] > 2 else [], raising=False)

    def run(folder: Path, rounds: int = 1) -> dict[str, object]:
        return {"rounds": rounds, "there": folder.is_dir()}

    monkeypatch.setattr(toy, "run", run, raising=False)
    settings = {"folder": str(tmp_path), "rounds": "2"}
    assert measure("toy", tmp_path, "abc", again=False, settings=settings) == []
    case = json.loads((tmp_path / "toy.json").read_text())["cases"]["run"]
    assert (case["settings"], case["results"]) == ({"rounds": "2"}, {"rounds": 2, "there": True})
    assert measure("toy", tmp_path, "abc", again=False, settings={**settings, "rounds": 3}) == ["toy run: too many"]
    with pytest.raises(ValueError, match="no_such"):
        measure("toy", tmp_path, "abc", again=True, settings={**settings, "no_such": 1})


@pytest.mark.long
@pytest.mark.slow
def test_kept_keys_and_values_against_reading_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(kv_reuse, "PROMPT", 20)
    monkeypatch.setattr(kv_reuse, "EPISODES", 3)
    try:
        results = kv_reuse.contest("llama-1m", 2, shared=True, rounds=1, threads=threads)
    finally:
        use_matmul_backend("torch")
    assert results["episodes_that_differ"] == 0
    assert results["tokens_read_by_kept"] == 20 + 3 * 41  # the result, and the turn's last token
    assert results["seconds"]["kept"] > 0


def test_the_first_differing_token_is_the_earliest() -> None:
    assert kv_reuse.differences([[(1, 2), (3, 4)]], [[(1, 2), (3, 5)]])["first_differing_token"] == {
        "episode": 0,
        "turn": 2,
        "token": 2,
        "kept": 4,
        "read anew": 5,
    }


@pytest.mark.long
@pytest.mark.slow
def test_schedules_are_compared_on_the_same_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_schedules, "LATENCY_S", 0.05)
    try:
        plays = partial(episode_schedules.contest, 12, 1, "llama-1m", torch.get_num_threads())
        results = episode_schedules.prepared(plays)
        costs = episode_schedules.prepared(partial(episode_schedules.calls, 4, 5))
    finally:
        use_matmul_backend("torch")
    assert results["calls"] == 60
    assert results["calls_that_hang"] == 1
    assert results["seconds"]["lock step"] > 5
    assert 0 < costs["one_call_ms"] < 1000
