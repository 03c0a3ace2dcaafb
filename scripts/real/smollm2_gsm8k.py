"""A real model, real preference pairs and real prompts through the public command line, from start to loadable model.

SmolLM2-135M-Instruct learns with GRPO on GSM8K prompts, once rewarded by an ensemble trained on hh-rlhf pairs and
once by the numeric verifier. Each final model is then loaded and asked with transformers alone. Figures go to a JSON
file.

    python -m scripts.real.smollm2_gsm8k --model SmolLM2-135M-Instruct.gguf --data FOLDER

``--model`` is a hub id, folder or .gguf file (default: $RLHF_SMOLLM2_GGUF, else the hub's). ``--data`` holds
``gsm8k/`` and ``hh_rlhf/`` (default: $RLHF_TEST_DATA, else the hub's datasets).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config.plan import library_versions

ROOT = Path(__file__).parents[2]
RLHF = str(Path(sys.executable).with_name("rlhf"))
RUNS = ("ensemble", "verifier")
QUESTION = "What is 12 + 30?"


def main() -> None:
    """Run both, check both models, print and record."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.real.smollm2_gsm8k",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default=os.environ.get("RLHF_SMOLLM2_GGUF"))
    parser.add_argument("--data", type=Path, default=os.environ.get("RLHF_TEST_DATA"))
    parser.add_argument("--only", choices=RUNS, help="one of the two runs; nothing is recorded")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "bench" / "smollm2_gsm8k.json")
    parser.add_argument("--runs", type=Path, help="where the runs are kept; default a temporary folder")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="a.b=c", help="for every run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = args.runs or Path(folder)
        results = {name: one_run(name, args, runs / name) for name in ((args.only,) if args.only else RUNS)}
    print(json.dumps(results, indent=2))
    if not args.only:
        machine = {"cores": os.cpu_count(), "load_average": os.getloadavg(), "versions": library_versions()}
        record = {
            "command": "python -m scripts.real.smollm2_gsm8k",
            "settings": args.settings,
            "results": results,
            "machine": machine,
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=2) + "\n")


def one_run(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train through the command line, then use the final model without this toolkit."""
    settings = [*local_copies(name, args.model, args.data), *args.settings]
    config = ROOT / "configs" / f"smollm2_gsm8k_{name}.yaml"
    command = [
        RLHF,
        "train",
        "--config",
        str(config),
        "--run-dir",
        str(folder),
        "--json",
        *(["--model", args.model] if args.model else []),
        *[p for s in settings for p in ("--set", s)],
    ]
    print(f"{name}: training", file=sys.stderr, flush=True)
    start, cpu = time.perf_counter(), child_seconds()
    out = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
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


if __name__ == "__main__":
    main()
