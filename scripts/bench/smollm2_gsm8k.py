"""A real model, real preference pairs and real prompts through the public command line, from start to loadable model.

SmolLM2-135M-Instruct learns with GRPO on GSM8K prompts, once rewarded by an ensemble trained on hh-rlhf pairs and
once by the numeric verifier. Each final model is then loaded and asked with transformers alone.

    python -m scripts.bench smollm2_gsm8k model=SmolLM2-135M-Instruct.gguf data=FOLDER

``model`` is a hub id, folder or .gguf file (default: $RLHF_SMOLLM2_GGUF, else the hub's). ``data`` holds
``gsm8k/`` and ``hh_rlhf/`` (default: $RLHF_TEST_DATA, else the hub's datasets).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RLHF = str(Path(sys.executable).with_name("rlhf"))
RUNS = ("ensemble", "verifier")
QUESTION = "What is 12 + 30?"


def cases(
    model: str | None = None, data: Path | None = None, folder: Path | None = None, settings: tuple[str, ...] = ()
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Both runs, kept in ``folder`` if it is given; ``settings`` go to each."""
    runs = folder or Path(tempfile.mkdtemp())
    model, texts = model or os.environ.get("RLHF_SMOLLM2_GGUF"), data or os.environ.get("RLHF_TEST_DATA")
    return {name: partial(one_run, name, model, Path(texts) if texts else None, settings, runs / name) for name in RUNS}


def one_run(name: str, model: str | None, data: Path | None, more: Sequence[str], folder: Path) -> dict[str, Any]:
    """Train through the command line, then use the final model without this toolkit."""
    config = ROOT / "configs" / f"smollm2_gsm8k_{name}.yaml"
    sets = [word for setting in (*local_copies(name, model, data), *more) for word in ("--set", setting)]
    words = ["--config", str(config), "--run-dir", str(folder), "--json", *(["--model", model] if model else []), *sets]
    print(f"{name}: training", file=sys.stderr, flush=True)
    start, cpu = time.perf_counter(), child_seconds()
    out = subprocess.run([RLHF, "train", *words], check=False, stdout=subprocess.PIPE, text=True)
    if out.returncode:
        raise SystemExit(f"{name}: rlhf train ended with code {out.returncode}")
    wall = round(time.perf_counter() - start, 1)
    seconds = {"seconds_total": wall, "cpu_seconds_total": round(child_seconds() - cpu, 1)}
    steps = [row for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if "time" in row]
    summary = json.loads((folder / "summary.json").read_text())
    return {**seconds, **figures(summary, steps), "final_model": use(folder / "final")}


def child_seconds() -> float:
    """CPU seconds of finished child processes: what a run costs, however busy the machine is."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def local_copies(name: str, model: str | None, data: Path | None) -> list[str]:
    """Settings that point a configuration to local copies."""
    found: list[str] = []
    if model is not None and name == "ensemble":
        found.append(f"reward.base_model.path={model}")
    if data is not None:
        found += [f"dataset.path={Path(data) / 'gsm8k'}", "dataset.subset=null"]
    if data is not None and name == "ensemble":
        found.append(f"reward.pairs.path={Path(data) / 'hh_rlhf'}")
    return found


def figures(summary: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is worth recording of a run; no text of the datasets."""
    seconds = {part: round(sum(s["time"].get(part, 0.0) for s in steps) / len(steps), 2) for part in steps[0]["time"]}
    rewards = [round(s["reward/mean"], 4) for s in steps]
    before, after = summary.get("evaluation_before") or {}, summary.get("evaluation_after") or {}
    return {
        "steps": len(steps),
        "completions": int(summary["dropped"].get("scores_ok", 0)),
        "seconds_per_step": seconds,
        "tokens_generated": summary["tokens_generated"],
        "reward_by_step": rewards,
        "drift_mean_abs_first_step": steps[0].get("drift/mean_abs"),
        "heldout_before": {k.removeprefix("eval/"): round(v, 4) for k, v in before.items()},
        "heldout_after": {k.removeprefix("eval/"): round(v, 4) for k, v in after.items()},
        "counted": summary["dropped"],
        "reports": summary.get("reports", {}),
    }


def use(folder: Path) -> dict[str, Any]:
    """Load the model with transformers alone and let it answer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = model.generate(**prompt, max_new_tokens=24, do_sample=False)  # pyright: ignore[reportAttributeAccessIssue]
    text = tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return {"parameters": model.num_parameters(), "question": QUESTION, "answer": text}
