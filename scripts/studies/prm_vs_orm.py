"""Right answers by wrong steps: does a process reward model see them, and does an outcome model?

    python scripts/studies/prm_vs_orm.py [--seeds 0 1 2] [--jobs 2] [--out docs/studies/prm_vs_orm]

In the world of ``chain_steps`` (sums in a row, every step checkable) both learn from the same solutions with the same
small transformer, from scratch, and the same updates, twice: on right solutions and wrong ones with wrong answers, and
on these with right answers by wrong steps besides. Then both see held-out questions, each solved rightly, by an error
carried to a wrong answer, by a slip that nothing follows from, and by two errors that cancel. Writes OUT.json after
every model, goes on where it was interrupted, and writes OUT.md at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

MIXES: Mapping[str, Mapping[str, float]] = {
    "all kinds": {"carried": 1.0, "slip": 0.5, "cancelled": 0.5},
    "wrong answers only": {"carried": 2.0, "slip": 0.0, "cancelled": 0.0},
}
WORLD: Mapping[str, Any] = {"chains": 1000, "terms": (2, 3), "largest": 6}
TRUNK: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}
WRONG = ("carried", "slip", "cancelled")
READINGS = ("orm", "min", "mean", "product", "last")
FALSE_ALARMS = 0.05


def learn(seed: int, mix: str, target: Any, updates: int) -> dict[str, Any]:
    """Train one model with the plugin's own parts; return what it thinks of every step of the held-out solutions."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    from rlhf_core.api import ModelConfig
    from rlhf_core.models.load import load_tokenizer
    from rlhf_core.strategy.local import LocalStrategy
    from rlhf_core.trainers.common.learner import Learner
    from rlhf_plugin_prm.config import PrmConfig
    from rlhf_plugin_prm.loss import StepBce
    from rlhf_plugin_prm.net import StepEncoder, StepModule, encode_solutions, step_probabilities
    from rlhf_plugin_reward.net import RewardNet, new_head

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = load_tokenizer(ModelConfig())
    encoder = StepEncoder(tokenizer, TRUNK["max_position_embeddings"])
    held = [s for _, s in solutions(seed, "heldout", dict.fromkeys(WRONG, 1.0))]
    items = encode_solutions([s for _, s in solutions(seed, "train", MIXES[mix])], encoder, target, False, Counter())
    trunk = LlamaModel(LlamaConfig(vocab_size=len(tokenizer), **TRUNK))
    net = RewardNet(trunk, new_head(TRUNK["hidden_size"], 1, seed))
    config = PrmConfig.model_validate(
        {
            "batch_size": 32,
            "micro_batch_size": 32,
            "optimizer": {"learning_rate": 3e-3, "warmup_steps": 50, "schedule": "cosine"},
        }
    )
    strategy = LocalStrategy("cpu")
    updater = Learner(strategy.prepare(StepModule(net)), StepBce(), strategy, config, updates)
    began, rng = time.process_time(), np.random.default_rng(seed)
    last = [updater.update([items[i] for i in rng.integers(0, len(items), 32)])["loss"] for _ in range(updates)][-50:]
    coded = [encoder.encode(s.prompt, s.text, s.steps) for s in held]
    right = step_probabilities(net.eval(), [c[0] for c in coded], [c[1] for c in coded], 16384)
    return {
        "right": [[round(float(p), 6) for p in row] for row in right],
        "loss": round(float(np.mean(last)), 4),
        "cpu_seconds": round(time.process_time() - began, 1),
        "train_solutions": len(items),
    }


def solutions(seed: int, split: str, kinds: Mapping[str, float]) -> list[tuple[str, Any]]:
    """(kind, solution) of a split; the questions are the same whatever the kinds."""
    from rlhf_core.api import Prompt
    from rlhf_plugin_prm.data.config import ChainStepsConfig
    from rlhf_plugin_prm.data.sources import ChainSource
    from rlhf_plugin_prm.examples import read_solutions

    config = ChainStepsConfig.model_validate({**WORLD, **kinds, "seed": seed})
    rows = ChainSource(config).rows(split)
    prompts = [Prompt(r["id"], ({"role": "user", "content": r["prompt"]},), meta=r) for r in rows]
    return [(str(r["kind"]), s) for r, s in zip(rows, read_solutions(prompts, "newline", str))]


def compared(seed: int, mix: str, prm: Mapping[str, Any], orm: Mapping[str, Any]) -> dict[str, Any]:
    """What both make of the same solutions."""
    from rlhf_plugin_prm.first_error import report
    from rlhf_plugin_prm.reward import aggregate

    held = solutions(seed, "heldout", dict.fromkeys(WRONG, 1.0))
    kinds, labels = [k for k, _ in held], [s.first_error for _, s in held]
    of = {"prm": [np.array(p) for p in prm["right"]], "orm": [np.array(p) for p in orm["right"]]}
    readings = {
        how: judged(
            np.array(
                [aggregate(p, "last") for p in of["orm"]] if how == "orm" else [aggregate(p, how) for p in of["prm"]]
            ),
            kinds,
        )
        for how in READINGS
    }
    return {
        "seed": seed,
        "mix": mix,
        "solutions": Counter(kinds),
        "readings": readings,
        "first_error": {a: report(p, labels) for a, p in of.items()},
        "training": {a: {k: v for k, v in m.items() if k != "right"} for a, m in (("prm", prm), ("orm", orm))},
    }


def judged(scores: Any, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of each wrong kind: the share flagged at a threshold that flags one right solution in 20, and the AUC."""
    of = {k: scores[[x == k for x in kinds]] for k in ("right", *WRONG)}
    threshold = float(np.quantile(of["right"], FALSE_ALARMS))
    return {
        k: {"flagged": round(float((of[k] < threshold).mean()), 4), "auc": round(auc(of["right"], of[k]), 4)}
        for k in WRONG
    }


def auc(high: Any, low: Any) -> float:
    """Probability that a right solution scores above a wrong one; ties count half (Mann and Whitney 1947)."""
    low = np.sort(low)
    below, upto = (np.searchsorted(low, high, side) for side in ("left", "right"))
    return float((below + upto).mean() / (2 * len(low)))


def digest(mix: str) -> str:
    """Of the constants that decide a model: another world's is not taken for this one's."""
    return hashlib.sha256(json.dumps([WORLD, TRUNK, MIXES[mix]]).encode()).hexdigest()[:8]


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Share flagged, mean over seeds and lowest to highest."""
    lines = [
        "| trained on | reading | wrong answer | slip, right answer | cancelled, right answer |",
        "|---|---|---|---|---|",
    ]
    mixes = list(dict.fromkeys(r["mix"] for r in results))
    for mix in mixes:
        rows = [r["readings"] for r in results if r["mix"] == mix]
        for how in READINGS:
            cells = [span([r[how][kind]["flagged"] for r in rows]) for kind in WRONG]
            label = "ORM" if how == "orm" else f"PRM, {how}"
            lines.append(f"| {mix} | {label} | {' | '.join(cells)} |")
    lines += [
        "",
        "First wrong step, F1 at the threshold chosen on the other half (chance):",
        "",
        "| trained on | PRM | ORM read at every step |",
        "|---|---|---|",
    ]
    for mix in mixes:
        rows = [r["first_error"] for r in results if r["mix"] == mix]
        cells = [
            f"{span([r[a]['crossed']['f1'] for r in rows])} ({np.mean([r[a]['chance'] for r in rows]):.2f})"
            for a in ("prm", "orm")
        ]
        lines.append(f"| {mix} | {' | '.join(cells)} |")
    return "\n".join(lines)


def span(values: Sequence[float]) -> str:
    """Mean, and lowest to highest."""
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Train what is missing, compare, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--mixes", nargs="+", choices=list(MIXES), default=list(MIXES))
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kept", type=Path, default=Path("runs/prm_vs_orm"), help="finished models' scores")
    parser.add_argument("--out", type=Path, default=Path("docs/studies/prm_vs_orm"))
    args = parser.parse_args()
    args.kept.mkdir(parents=True, exist_ok=True)
    wanted = [(s, m, t) for m in args.mixes for s in args.seeds for t in ("steps", "outcome")]
    files = {
        (s, m, t): args.kept / f"{s}-{m.replace(' ', '_')}-{t}-{args.updates}-{digest(m)}.json" for s, m, t in wanted
    }
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        tasks = {pool.submit(learn, *w, args.updates): w for w, file in files.items() if not file.exists()}
        for task in as_completed(tasks):
            files[tasks[task]].write_text(json.dumps(task.result()) + "\n")
            print(*tasks[task], "done", flush=True)
    models = {w: json.loads(file.read_text()) for w, file in files.items()}
    results = [compared(s, m, models[s, m, "steps"], models[s, m, "outcome"]) for m in args.mixes for s in args.seeds]
    text = table(results)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "updates": args.updates,
        "world": WORLD,
        "trunk": TRUNK,
        "mixes": MIXES,
        "false_alarms": FALSE_ALARMS,
        "cores": os.cpu_count(),
        "results": results,
    }
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    only = "" if args.mixes == list(MIXES) else " --mixes " + " ".join(f"'{m}'" for m in args.mixes)
    said = f"`python scripts/studies/prm_vs_orm.py{only}`, {len(args.seeds)} seeds. Share of held-out solutions flagged"
    args.out.with_suffix(".md").write_text(f"{said} when 1 right one in 20 is:\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
