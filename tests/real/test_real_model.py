"""What the README promises, run for real: the quickstart's figures, and a real language model on real data."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.save import save_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
RLHF = [sys.executable, "-m", "rlhf_core.cli.main"]
QUESTION = "The capital of France is"


@pytest.fixture
def gguf() -> str:
    file = os.environ.get("RLHF_SMOLLM2_GGUF")
    if not file:
        pytest.skip("RLHF_SMOLLM2_GGUF is not set: no real model")
    return file


@pytest.mark.long
def test_quickstart_beats_the_starting_policy_by_the_gold_score(tmp_path: Path) -> None:
    env = {**os.environ, "RLHF_CACHE": str(tmp_path / "cache")}
    command = [*RLHF, "train", "--algo", "grpo", "--reward", "ensemble", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=900)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    low, high = summary["gold_win_rate_interval"]
    assert summary["gold_win_rate_prompts"] == 200
    assert summary["gold_win_rate"] >= 0.65
    assert 0.5 < low < summary["gold_win_rate"] < high, "better than the starting policy beyond chance"
    assert f"{summary['gold_win_rate']:.1%} (95 % interval {low:.1%} to {high:.1%}" in done.stdout
    assert done.stdout.count("    before: ") == done.stdout.count("    after:  ") == 3
    assert "none trained yet for this setting; training 3 members" in done.stderr
    report = summary["reports"]["ensemble"]
    assert len(report["heldout"]["members"]) == 3


@pytest.mark.parametrize("layers", [3, pytest.param(0, marks=pytest.mark.long)], ids=["slice", "whole"])
def test_grpo_on_gsm8k(
    layers: int, gguf: str, test_data: Path, rlhf: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's weights and tokenizer become an ordinary model, which is trained, saved and read again.

    Where ``layers`` are given, only the first of them are trained.
    """
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path))
    source = check_gguf(gguf, tmp_path / "source")
    if layers:
        cut(source, layers)
    settings = (
        *("trainer.steps=1", "trainer.rollout_batch_size=4", "trainer.group_size=2", "trainer.micro_batch_size=4"),
        *("trainer.eval_samples=1", "trainer.sampling.max_tokens=12", "trainer.gold_samples=0"),
        *("reward.members=2", "reward.max_pairs=4", "reward.heldout_pairs=2", "reward.max_length=64"),
        *("dataset.limit=32", "dataset.max_prompt_tokens=100", "dataset.max_dropped_fraction=0.9"),
        *("dataset.prompt_template=Answer {prompt}", f"reward.base_model.path={source}"),
        *(f"reward.pairs.path={test_data / 'hh_rlhf'}", f"dataset.path={test_data / 'gsm8k'}", "dataset.subset=null"),
    )
    config, run = Path(__file__).parents[2] / "configs" / "smollm2_gsm8k_ensemble.yaml", tmp_path / "run"
    sets = [word for setting in settings for word in ("--set", setting)]
    out = rlhf("train", "--config", config, "--model", source, "--run-dir", run, *sets)
    assert out.code == 0, out.err
    summary = json.loads((run / "summary.json").read_text())
    steps = [row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "time" in row]
    assert summary["dropped"]["scores_ok"] == len(steps) * 4 == 4
    assert steps[0]["grad_norm"] > 0
    assert steps[0]["drift/mean_abs"] < 1e-3, "engine and trainer agree on the sampled tokens' logprobs"
    assert summary["tokens_generated"] > 4 * 8
    assert summary["reports"]["ensemble"]["train_pairs"] == 4
    tokenizer = AutoTokenizer.from_pretrained(run / "final")
    model = AutoModelForCausalLM.from_pretrained(run / "final")
    assert model.num_parameters() > (30e6 if layers else 130e6)
    ids = torch.tensor([tokenizer(QUESTION)["input_ids"]])
    text = tokenizer.decode(model.generate(ids, max_new_tokens=12, do_sample=False)[0], skip_special_tokens=True)
    assert text.startswith(QUESTION)
    assert layers or len(text.split()) > 6


def cut(folder: Path, layers: int) -> None:
    """Leave a model its first layers."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = layers
    model.save_pretrained(folder)


def check_gguf(file: str, folder: Path) -> Path:
    """Read the file and write it into the folder as a model, which is the same to every bit."""
    loaded = load_policy(ModelConfig(path=file))
    assert getattr(loaded.model.config, "quantization_config", None) is None
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    save_model(loaded.model, loaded.tokenizer, folder, merge=True)
    again = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer(QUESTION)["input_ids"]])
    with torch.no_grad():
        want, got = loaded.model(input_ids=ids).logits, again(input_ids=ids).logits
    assert torch.equal(got, want)
    assert tokenizer.decode(int(want[0, -1].argmax())).strip() == "Paris"
    return folder


@pytest.mark.long  # the real model is trained, and its final folder read again: above
def test_sft_with_adapters_on_human_conversations(
    gguf: str, test_data: Path, rlhf: Callable[..., Any], tmp_path: Path
) -> None:
    with gzip.open(test_data / "hh_rlhf" / "pairs.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["chosen"] for line in itertools.islice(lines, 600)]
    turns = [re.split(r"\n\n(?:Human|Assistant): ", text)[1:] for text in texts]
    rows = [{"prompt": t[0], "completion": t[1]} for t in turns if len(t) == 2 and sum(map(len, t)) < 700][:60]
    assert len(rows) == 60
    data = tmp_path / "chosen.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = (
        "model.lora.r=8",
        "trainer.batch_size=8",
        "trainer.micro_batch_size=4",
        "trainer.max_steps=5",
        "trainer.optimizer={learning_rate: 0.001, warmup_steps: 0, schedule: constant}",
        "trainer.max_length=192",
        "dataset.heldout_fraction=0.2",
    )
    out = rlhf(
        "train",
        "--algo",
        "sft",
        "--model",
        gguf,
        "--dataset",
        data,
        "--run-dir",
        tmp_path / "run",
        "--json",
        *[part for s in settings for part in ("--set", s)],
    )
    assert out.code == 0, out.err
    summary = json.loads(out.out)
    assert summary["evaluation_after"]["eval/loss"] < summary["evaluation_before"]["eval/loss"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "final")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final")
    ids = torch.tensor([tokenizer("The capital of France is")["input_ids"]])
    with torch.no_grad():
        assert int(model(input_ids=ids).logits[0, -1].argmax()) < len(tokenizer)
