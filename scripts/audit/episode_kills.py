"""Kills runs with kill -9 inside an episode, again and again, and compares what they become with an uninterrupted run.

    python -m scripts.audit.episode_kills --kills 10 --write docs/bench/episode_kills.json

Four kinds of run: an environment with effects outside (each call appends a line to a file) and a pure one, each
synchronous and with rollouts ahead. The process is killed once its journal has grown so often, drawn at random (of five
times four as soon as no call is under way), and resumed, until it has been killed so often and is done. Of each run:
weights, metrics and trace against the uninterrupted run bit for bit, and every line of the file once. A kill during a
call with effects (the journal says that it began) may change what follows, since the policy is told; it is counted
apart, and no effect of it may come twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.bench._processor import processor

MODULE = """
from typing import ClassVar
from rlhf_core.models import ParsedToolCalls, RawToolCall
from rlhf_plugin_episodes.config import EnvironmentConfig
from rlhf_plugin_episodes.tool_spec import tool_spec

class EffectsConfig(EnvironmentConfig):
    name: str = "effects"
    component: ClassVar[str] = "audit_environment:Effects"
    tool_specs: ClassVar = (tool_spec("note", "Writes.", text="string"),)
    file: str = ""

class PureConfig(EffectsConfig):
    name: str = "pure"
    pure: ClassVar[bool] = True

class Effects:
    def __init__(self, config): self.file = config.file
    def reset(self, prompt, seed): self.name, self.count, self.sum = f"{prompt.id} {seed}", 0, 0
    def step(self, calls):
        wrote = "|".join(call.arguments["text"] for call in calls)  # two calls of one place are two effects
        self.count, self.sum = self.count + len(calls), self.sum + sum(map(ord, wrote))
        if self.file:
            with open(self.file, "a") as file: file.write(f"{self.name} {self.count} {wrote!r}\\n")
        return [f"{self.count}"] * len(calls)
    def score(self, sample): return float(self.sum % 7)
    def state_dict(self): return [self.name, self.count, self.sum]
    def load_state_dict(self, state): self.name, self.count, self.sum = state

class Always:  # whatever a policy with random weights writes is a call
    def take(self, text): return ParsedToolCalls("", [RawToolCall(text, "note", {"text": text})])
"""
ENTRIES = (
    "[rlhf.environment]\neffects = audit_environment:EffectsConfig\npure = audit_environment:PureConfig\n"
    "[rlhf.tool_format]\nalways = audit_environment:Always\n"
)
SETTINGS = {
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


def write_inputs(folder: Path) -> None:
    """The environments' distribution, a model with random weights, and prompts."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_tokenizer

    (folder / "audit_environment.py").write_text(MODULE)
    info = folder / "audit_environment-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: audit-environment\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    torch.manual_seed(0)
    tokenizer = load_tokenizer(ModelConfig(path="pocket", chat_template="hermes"))
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, **sizes, **ends)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [{"id": f"q{n}", "prompt": f"What is {n}?"} for n in range(24)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def arguments(folder: Path, environment: str, staleness: int, run: Path) -> list[str]:
    """Options of a run of a few seconds."""
    settings = {**SETTINGS, "trainer.rollouts.max_staleness": staleness}
    if environment == "effects":
        settings["environment.file"] = f"{run}.txt"
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    names = ["--algo", "grpo", "--env", environment, "--model", str(folder / "model")]
    return [*names, "--dataset", str(folder / "prompts.jsonl"), *sets, "--run-dir", str(run)]


def start(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """`rlhf train`, which finds the environments."""
    paths = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "RLHF_REPORT": "0"}
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(words: list[str], folder: Path) -> None:
    """Run to the end."""
    process = start(words, folder)
    _, err = process.communicate(timeout=1800)
    if process.returncode != 0:
        raise SystemExit(f"the run failed:\n{err.decode()[-3000:]}")


def lines(run: Path) -> list[dict[str, Any]]:
    """Whole rows of the journal."""
    rows: list[dict[str, Any]] = []
    for file in sorted((run / "episodes").glob("rank-*.jsonl")):
        with contextlib.suppress(FileNotFoundError):  # it was renamed just now
            rows += [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    return rows


def under_way(run: Path) -> bool:
    """Whether the journal holds a call that began and was not answered."""
    rows = lines(run)
    answered = {row["key"] for row in rows if "answer" in row}
    return any(row["key"] not in answered and "/score" not in row["key"] for row in rows if "began" in row)


def killed(words: list[str], run: Path, folder: Path, after: int, between: bool) -> tuple[bool, bool]:
    """Kill once the journal has grown so often; with ``between``, as soon as no call is under way.

    Returns:
        (it was alive then, a call with effects was under way).
    """
    journal = run / "episodes" / "rank-0.jsonl"
    process = start(words, folder)
    size = journal.stat().st_size if journal.is_file() else 0
    written = 0
    while process.poll() is None and written < after:
        now = journal.stat().st_size if journal.is_file() else 0
        written, size = written + (now != size), now
        time.sleep(0.0005)
    while between and process.poll() is None and under_way(run):
        time.sleep(0.0005)
    alive = process.poll() is None
    if alive:
        process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    if not alive and process.returncode != 0:
        raise SystemExit(f"a resumed run failed:\n{err.decode()[-3000:]}")
    return alive, alive and under_way(run)


def left_by(run: Path) -> dict[str, Any]:
    """What has to be equal."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trace = re.sub(r', "seconds": [0-9.e-]+', "", (run / "trace.jsonl").read_text()).splitlines()
    rows = [json.loads(line) for line in trace]
    return {
        "weights": (run / "final" / "model.safetensors").read_bytes(),
        "metrics": [{k: v for k, v in row.items() if k != "time"} for row in metrics],
        "trace": [row for row in rows if row["event"] == "prompt"],
    }


def effects(run: Path) -> list[str]:
    """Lines that calls have written, in any order."""
    file = Path(f"{run}.txt")
    return sorted(file.read_text().splitlines()) if file.is_file() else []


def audit(folder: Path, environment: str, staleness: int, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kill runs of one kind, so many times in all."""
    kind = f"{environment}-{staleness}"
    whole = folder / f"{kind}-whole"
    finish(arguments(folder, environment, staleness, whole), folder)
    reference, wanted = left_by(whole), effects(whole)
    if not json.loads((whole / "summary.json").read_text())["updates"]:
        raise SystemExit("the run without kills has not learned anything, so that its weights say nothing")
    count, during, runs, equal, comparable, twice = 0, 0, 0, 0, 0, 0
    episodes = sum(len(row["completions"]) for row in reference["trace"])
    while count < kills:
        run = folder / f"{kind}-{runs}"
        clean = True
        for _ in range(8):
            begun = (run / "plan.json").is_file()
            words = ["--resume", str(run)] if begun else arguments(folder, environment, staleness, run)
            if count >= kills:
                break
            alive, in_call = killed(words, run, folder, rng.randint(1, 20), rng.random() < 0.8)
            count, during, clean = count + alive, during + in_call, clean and not in_call
            what = ", during a call" if in_call else ""
            print(f"{kind}: kill {count} of {kills}{what}", file=sys.stderr, flush=True)
            if not alive:
                break
        if not (run / "summary.json").is_file():
            finish(["--resume", str(run)], folder)
        runs += 1
        mine, written = left_by(run), effects(run)
        usual = Counter(wanted)  # held-out episodes are played twice, with the same seed
        twice += sum(max(0, n - max(1, usual[line])) for line, n in Counter(written).items())
        if clean:
            comparable += 1
            differ = [key for key in reference if mine[key] != reference[key]]
            differ += [] if written == wanted else ["effects"]
            equal += not differ
            if differ:
                print(f"{kind}: run {runs} differs in {', '.join(differ)}", file=sys.stderr, flush=True)
    return {
        "environment": environment,
        "max_staleness": staleness,
        "episodes_of_a_run": episodes,
        "kills": count,
        "kills_during_a_call": during,
        "runs": runs,
        "runs_without_a_kill_during_a_call": comparable,
        "of_them_bit_equal": equal,
        "effects_of_a_run": len(wanted),
        "effects_twice": twice,
    }


def main() -> None:
    """Kill, resume, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=10, help="of each of the four kinds of run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        kinds = [(environment, staleness) for environment in ("effects", "pure") for staleness in (0, 1)]
        rows = [audit(folder, *kind, options.kills, rng) for kind in kinds]
    text = json.dumps({"processor": processor(), "runs": rows}, indent=2) + "\n"
    print(text)
    if options.write is not None:
        options.write.write_text(text)
    good = all(
        not r["effects_twice"] and r["of_them_bit_equal"] == r["runs_without_a_kill_during_a_call"] for r in rows
    )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
