"""A training run with a judge as its reward, end to end."""

from __future__ import annotations

import json
import os

import pytest

from rlhf_core.data import read_jsonl
from rlhf_plugin_judge.prices import NANO


@pytest.mark.slow
def test_a_run_compares_its_completions_and_pays_from_its_own_ledger(serve, command, tmp_path, monkeypatch):
    server = serve(faults={"429": 0.1, "500": 0.05}, retry_after=0.01)
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    settings = {"mode": "pairwise", "rivals": 2, "judge.base_url": server.url, "judge.backoff_s": 0.01}
    trainer = {"steps": 2, "rollout_batch_size": 8, "group_size": 4, "eval_samples": 4, "sampling.max_tokens": 12}
    words = [*(f"reward.{k}={v}" for k, v in settings.items()), *(f"trainer.{k}={v}" for k, v in trainer.items())]
    run = tmp_path / "run"
    code, err = command(
        "train",
        "--algo",
        "grpo",
        "--reward",
        "judge",
        "--run-dir",
        run,
        "--set",
        "threads=1",
        *(w for s in words for w in ("--set", s)),
    )
    assert code == 0, err
    spent = json.loads((run / "summary.json").read_text())["reports"]["judge"]
    rows = list(read_jsonl(run / "judge_ledger.jsonl"))
    assert spent["cost_usd"] * NANO == pytest.approx(server.service.seen["billed_nano"])
    assert spent["ledger_usd"] == pytest.approx(spent["cost_usd"])
    assert sum(r["op"] == "settle" and r["usd"] > 0 for r in rows) == spent["answers"] > 8
    evaluated = [r for r in read_jsonl(run / "metrics.jsonl") if any(k.startswith("eval/") for k in r)]
    assert evaluated
    assert not [r for r in evaluated if "eval/reward/mean" in r or not r["eval/reward/missing"]]  # one of each prompt
    secret = os.environ["ANTHROPIC_API_KEY"]
    assert not [f for f in run.rglob("*") if f.is_file() and secret.encode() in f.read_bytes()]
