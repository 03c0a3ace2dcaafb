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
from scripts.bench import _processor, episode_schedules, kv_reuse, report_page, strangers_path
from scripts.bench.__main__ import RECORD, measure, names
from scripts.bench._grpo_work import CASES, find
from scripts.bench.step_time import table


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


def test_a_table_of_ratios_names_the_processor_and_the_speed_of_a_product() -> None:
    side = {"median_seconds": 1.0, "share_of_floor": {"rollout": 0.4, "update": 0.6}}
    result = {
        "processor": "AMD EPYC (family 25, model 17), AVX512",
        "product_gflops": {"torch": 199.0, "onednn": 383.0},
    }
    result |= {"ours": side, "trl": side, "speedup_vs_trl": 1.0, "speedup_of_parts": {"rollout": 1.0, "update": 1.0}}
    lines = table({"a": {**result, "peak_rss_of_trl": 1.0, "work": "w"}}).splitlines()
    assert "processor: AMD EPYC (family 25, model 17), AVX512" in lines
    assert "torch 199, onednn 383" in lines[-1]


def test_what_is_recorded_exists_and_both_sides_can_find_their_work() -> None:
    assert set(RECORD) <= set(names())
    for case, work in CASES.items():
        assert find(case) is work
        assert work.rows % work.micro_batch == 0, "the other side accumulates whole micro-batches"
        assert all(work.shortest <= n <= work.longest for n in work.lengths())
    assert find("2x4x128").lengths() == [128] * 8


@pytest.mark.parametrize("words", [None, 3])
def test_the_run_whose_page_is_measured_has_its_completions_in_the_trace_s_format(
    tmp_path: Path, words: int | None
) -> None:
    completion = {"text": "four", "tokens": 2, "completion_ids": [5, 6], "logprobs": [-0.5, -1.0], "score": 1.0}
    prompts = [
        {"event": "prompt", "step": step, "prompt": "2 + 2", "completions": [completion] * report_page.GROUP}
        for step in (1, 2, 3)
        for _ in range(report_page.PROMPTS)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    steps = [{"step": 0, "eval/x": 1.0}, *({"step": n, "loss": 0.5} for n in (1, 2, 3))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    report_page.enlarge(tmp_path, words)
    rows = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    completions = [one for row in rows for one in row["completions"]]
    assert len(completions) == 10_000
    assert {row["step"] for row in rows} == set(range(1, 41))
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 40
    tokens = words or 2
    assert all(len(one["logprobs"]) == len(one["completion_ids"]) == one["tokens"] == tokens for one in completions)
    assert all(len(one["text"].split()) == (words or 1) for one in completions)


def test_the_strangers_path_is_the_tutorials_and_its_table_has_every_step(tmp_path: Path) -> None:
    steps = strangers_path.steps_of((strangers_path.ROOT / "docs/tutorial.md").read_text())
    assert [s.language for s in steps].count("python") == 2
    trained = [s.command.split("--algo ")[1].split()[0] for s in steps if s.command.startswith("rlhf train")]
    assert trained == ["sft", "reward_model", "grpo"]
    assert not any("\\" in s.command for s in steps if s.language == "bash")
    env = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": str(tmp_path)}
    row = strangers_path.timed(strangers_path.Step("x", "echo no >&2; exit 3"), tmp_path, env)
    assert (row["rc"], row["said"]) == (3, "no\n")
    record = json.loads(strangers_path.RECORD.read_text())
    assert all(row["rc"] == 0 for row in record["steps"])
    assert len(strangers_path.table(record).splitlines()) >= len(record["steps"])


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
    assert results["peak_memory"]["as_ready"]["trainer_mib"] > 100
    assert 0 < costs["one_call_ms"] < 1000
