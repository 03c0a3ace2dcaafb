"""Kills runs with kill -9, again and again, and compares what they become with an uninterrupted run.

A run is killed once its files have grown so often, drawn at random, four times of five as soon as no call is under way,
and resumed. Weights, metrics and trace must be equal bit for bit. A kill during a call with effects may change what
follows, since the policy is told; it is counted apart, and no effect of it may come twice.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from scripts._distribution import install
from scripts.faults._process import kill_when, run_to_end

MODULE = Path(__file__).with_name("kills_environment.txt").read_text()
ENTRIES = (
    "[rlhf.environment]\neffects = audit_environment:EffectsConfig\npure = audit_environment:PureConfig\n"
    "[rlhf.tool_format]\nalways = audit_environment:Always\n"
)
PLAIN = {
    "threads": 1,
    "trainer.steps": 8,
    "trainer.rollout_batch_size": 16,
    "trainer.group_size": 4,
    "trainer.eval_samples": 4,
    "trainer.eval_every": 4,
    "trainer.checkpoint_every": 2,
    "trainer.sampling.max_tokens": 16,
    "trainer.optimizer.learning_rate": 1e-3,
}
EPISODES = {
    "threads": 1,
    "model.tool_format": "always",
    "trainer.steps": 3,
    "trainer.rollout_batch_size": 8,
    "trainer.group_size": 4,
    "trainer.train_batch_size": 8,
    "trainer.sampling.max_tokens": 400,
    "trainer.eval_samples": 2,
    "trainer.eval_every": 3,
    "trainer.checkpoint_every": 1,
    "agent.max_turn_tokens": 8,
    "agent.max_turns": 6,
    "agent.call_timeout_s": 60,
    "agent.workers": 4,
}


class Kind(NamedTuple):
    environment: str
    max_staleness: int
    most: int
    """The files of a run grow at most so often before it is killed."""

    def words(self, folder: Path, run: Path) -> list[str]:
        settings = {**(EPISODES if self.environment else PLAIN), "trainer.rollouts.max_staleness": self.max_staleness}
        if self.environment == "effects":
            settings["environment.file"] = f"{run}.txt"
        plain = ["--reward", "verifier", "--dataset", "pocket/arithmetic"]
        episodes = ["--env", self.environment, "--model", f"{folder}/model", "--dataset", f"{folder}/prompts.jsonl"]
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        names = ["train", "--algo", "grpo", *(episodes if self.environment else plain)]
        return [*names, *sets, "--run-dir", str(run)]


KINDS = {
    "two steps ahead": Kind("", 2, 6),
    "effects": Kind("effects", 0, 20),
    "effects, a step ahead": Kind("effects", 1, 20),
    "pure": Kind("pure", 0, 20),
    "pure, a step ahead": Kind("pure", 1, 20),
}


@cache
def inputs() -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_tokenizer

    folder = Path(tempfile.mkdtemp())
    install(folder, "audit_environment", MODULE, ENTRIES)
    torch.manual_seed(0)
    tokenizer = load_tokenizer(ModelConfig(path="pocket", chat_template="hermes"))
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, **sizes, **ends)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [{"id": f"q{n}", "prompt": f"What is {n}?"} for n in range(24)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def under_way(run: Path) -> bool:
    rows: list[dict[str, Any]] = []
    for file in sorted((run / "episodes").glob("rank-*.jsonl")):
        with contextlib.suppress(FileNotFoundError):  # it was renamed just now
            rows += [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    answered = {row["key"] for row in rows if "answer" in row}
    return any(row["key"] not in answered and "/score" not in row["key"] for row in rows if "began" in row)


def grown(run: Path, times: int, between: bool) -> Callable[[], bool]:
    """Whether the run's files have changed so often since now; with ``between``, and no call is under way."""
    files = [run / "metrics.jsonl", run / "episodes" / "rank-0.jsonl"]

    def sizes() -> list[int]:
        return [file.stat().st_size if file.is_file() else 0 for file in files]

    seen, count = sizes(), 0

    def due() -> bool:
        nonlocal seen, count
        now = sizes()
        seen, count = now, count + (now != seen)
        return count >= times and not (between and under_way(run))

    return due


def left_by(run: Path) -> dict[str, Any]:
    """What has to be equal."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trace = re.sub(r', "seconds": [0-9.e-]+', "", (run / "trace.jsonl").read_text()).splitlines()
    rows = [json.loads(line) for line in trace]
    return {
        "weights": (run / "final" / "model.safetensors").read_bytes(),
        "metrics": [{k: v for k, v in row.items() if k != "time"} for row in metrics],
        "trace": [row for row in rows if row["event"] == "prompt"],
        "effects": effects(run),
    }


def effects(run: Path) -> list[str]:
    """Lines that calls have written, in any order."""
    file = Path(f"{run}.txt")
    return sorted(file.read_text().splitlines()) if file.is_file() else []


class Killed(NamedTuple):
    """One run that was killed and has finished."""

    kills: int
    during_a_call: int
    left: dict[str, Any]


def killed_run(kind: Kind, run: Path, most: int, rng: random.Random) -> Killed:
    """A run that is killed at most so often."""
    kills = during = 0
    for _ in range(min(most, 8)):
        words = ["train", "--resume", str(run)] if (run / "plan.json").is_file() else kind.words(inputs(), run)
        if not kill_when(grown(run, rng.randint(1, kind.most), rng.random() < 0.8), words, inputs()):
            break
        kills, during = kills + 1, during + under_way(run)
        print(f"{run.name}: killed {kills} times", file=sys.stderr, flush=True)
    if not (run / "summary.json").is_file():
        begun = (run / "plan.json").is_file()
        run_to_end(["train", "--resume", str(run)] if begun else kind.words(inputs(), run), inputs())
    return Killed(kills, during, left_by(run))


def audit(name: str, kills: int, seed: int) -> dict[str, Any]:
    kind, rng, results = KINDS[name], random.Random(seed), list[Killed]()
    whole = inputs() / f"{name}-whole".replace(" ", "-")
    run_to_end(kind.words(inputs(), whole), inputs())
    reference = left_by(whole)
    if not json.loads((whole / "summary.json").read_text())["updates"]:
        raise SystemExit("the run without kills has not learned anything, so that its weights say nothing")
    while (count := sum(one.kills for one in results)) < kills:
        run = whole.with_name(f"{whole.name}-{len(results)}")
        results.append(killed_run(kind, run, kills - count, rng))
    usual = Counter(reference["effects"])  # held-out episodes are played twice, with the same seed
    written = [Counter(one.left["effects"]) for one in results]
    clean = [one for one in results if not one.during_a_call]
    return {
        "episodes_of_a_run": sum(len(row["completions"]) for row in reference["trace"]),
        "kills": count,
        "kills_during_a_call": sum(one.during_a_call for one in results),
        "runs": len(results),
        "runs_without_a_kill_during_a_call": len(clean),
        "of_them_bit_equal": sum(one.left == reference for one in clean),
        "effects_of_a_run": len(reference["effects"]),
        "effects_twice": sum(max(0, n - max(1, usual[line])) for lines in written for line, n in lines.items()),
    }


def cases(kills: int = 10, seed: int = 0) -> dict[str, Callable[[], dict[str, Any]]]:
    """``kills`` of each kind of run; ``seed`` is of the moments."""
    return {name: partial(audit, name, kills, seed) for name in KINDS}


def broken(results: Mapping[str, Any]) -> list[str]:
    unequal = results["of_them_bit_equal"] != results["runs_without_a_kill_during_a_call"]
    twice = results["effects_twice"]
    return [*(["a resumed run differs"] if unequal else []), *([f"{twice} effects came twice"] if twice else [])]
