"""A turn reward model on Taskmaster's human verdicts: is an agent's turn right, in the dialogue before it?

    python -m scripts.real.taskmaster_turns --runs FOLDER --data taskmaster/tm-4_reward.jsonl.gz

`rlhf train --algo prm` with one labelled step a row, the turn; calls and results of the ordering service are written as
text, so that any model reads them. Every row of the file has an id of its own, so dialogues are told by what the user
said first: rows with the same first words (880 of them in 3,228 rows) are on one side of the split, a fifth of them
held out, others for each seed. The held-out AUC has a 95 % interval over dialogues. Beside it, on the same rows: what
the turn's kind (a call or words), its length, its place, and whether those very words were right elsewhere in the
training rows, tell without any model.

Models are `pocket-tools` and, where --model names them, others; $RLHF_SMOLLM2_GGUF is added if it is set, with
``--rows`` of the training rows (the wrong ones first). A run that is there is used again, one that was cut off goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data.atomic import write_json
from rlhf_plugin_prm.evaluate import judge
from rlhf_studies.common.runs import train
from scripts.bench.__main__ import commit, machine
from scripts.real._auc import auc_interval

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "bench" / "taskmaster_turns.json"
HELD_OUT = 0.2
Row = dict[str, Any]
"""``id`` (``DIALOGUE:NUMBER``), ``prompt``, ``steps`` (the turn) and ``labels``."""


def read_turns(file: Path) -> list[Row]:
    """Rows of the published file as the trainer reads them.

    Raises:
        SystemExit: there is no such file.
    """
    if not file.is_file():
        raise SystemExit(f"there is no {file}; --data FILE names tm-4_reward.jsonl.gz of Taskmaster")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        raw = [json.loads(line) for line in lines]
    rows: list[Row] = []
    for number, row in enumerate(raw):
        turns = json.loads(row["context"])
        words = next((t["text"] for t in turns if t["role"] == "user"), "")
        name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "nothing-said"
        turn = spoken(json.loads(row["generation"]))[1]
        if turn.strip():
            rows.append({"id": f"{name}:{number:04d}", "prompt": conversation(turns), "steps": [turn],
                         "labels": [bool(row["reward"])]})  # fmt: skip
    return rows


def spoken(turn: Mapping[str, Any]) -> tuple[str, str]:
    """Role and text of a turn, on one line; calls and results are written out."""
    if "response" in turn:
        return "user", f"RESULT {json.dumps(turn['response'])}"
    if "api" in turn:
        return "assistant", f"CALL {json.dumps(turn['api'])}"
    return ("assistant" if turn["role"] == "agent" else "user"), " ".join(str(turn["text"]).split())


def conversation(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What was said before, the two sides in turns; a user begins."""
    messages: list[dict[str, str]] = [{"role": "user", "content": "(the customer comes in)"}]
    for role, text in map(spoken, turns):
        if messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{text}"
        else:
            messages.append({"role": role, "content": text})
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": "(waits)"})
    return messages


def dialogue(row: Row) -> str:
    """Which dialogue a row is of."""
    return row["id"].rpartition(":")[0]


def split(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Rows to train on and held-out rows; no dialogue is in both."""
    names = sorted({dialogue(row) for row in rows})
    random.Random(f"taskmaster/{seed}").shuffle(names)
    held_out = set(names[: round(HELD_OUT * len(names))])
    return [r for r in rows if dialogue(r) not in held_out], [r for r in rows if dialogue(r) in held_out]


def fewer(rows: Sequence[Row], count: int | None, seed: int) -> list[Row]:
    """So many rows, the wrong ones first; shuffled."""
    rng, rows = random.Random(f"taskmaster/rows/{seed}"), list(rows)
    rng.shuffle(rows)
    if count is not None:
        rows = sorted(rows, key=lambda row: row["labels"][0])[:count]
        rng.shuffle(rows)
    return rows


def without_a_model(rows: Sequence[Row], held_out: Sequence[Row]) -> dict[str, Any]:
    """What the turn alone tells."""
    seen: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        seen[row["steps"][0].lower()].append(row["labels"][0])
    share = sum(row["labels"][0] for row in rows) / len(rows)
    readings = {
        "words rather than a call": [float(not r["steps"][0].startswith("CALL")) for r in held_out],
        "length": [float(len(r["steps"][0])) for r in held_out],
        "place": [float(len(r["prompt"])) for r in held_out],
        "right elsewhere": [
            (sum(known) + share) / (len(known) + 1) if (known := seen.get(r["steps"][0].lower(), [])) else share
            for r in held_out
        ],
    }
    labels, groups = [r["labels"][0] for r in held_out], [dialogue(r) for r in held_out]
    return {name: auc_interval(values, labels, groups) for name, values in readings.items()}


def write_rows(file: Path, rows: Sequence[Row]) -> Path:
    """One line a row."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


def configuration(model: str, seed: int, file: Path, wrong: float, epochs: float) -> dict[str, Any]:
    """Of a run; wrong turns weigh as much as right ones together."""
    small = model == "pocket-tools"
    return {
        "seed": seed,
        "model": {"path": model, **({} if small else {"max_context": 768})},
        "dataset": {"name": "jsonl", "path": str(file.resolve()), "heldout_fraction": 0.0},
        "loss": {"name": "step_bce", "wrong_weight": round((1 - wrong) / wrong, 3)},
        "trainer": {
            "name": "prm", "epochs": epochs, "batch_size": 16, "micro_batch_size": 16 if small else 4,
            "max_length": 512 if small else 384, "eval_samples": 0, "eval_every": 0, "checkpoint_every": 25,
            "keep_checkpoints": 1, "optimizer": {"learning_rate": 1e-3 if small else 5e-5, "warmup_steps": 10},
        },
    }  # fmt: skip


def measured(runs: Path, model: str, seed: int, rows: Sequence[Row], args: argparse.Namespace) -> dict[str, Any]:
    """Train unless it is done, and score the held-out rows."""
    learned, held_out = split(rows, seed)
    learned = fewer(learned, None if model == "pocket-tools" else args.rows, seed)
    wrong = sum(not row["labels"][0] for row in learned) / len(learned)
    if not 0 < wrong < 1:
        raise SystemExit("the training rows are all right or all wrong: take more rows (--limit)")
    folder = runs / f"{Path(model).stem}-{seed}-{len(learned)}of{len(rows)}"  # other rows are another run
    file = write_rows(runs / f"{folder.name}-train.jsonl", learned)
    asked = write_rows(runs / f"{folder.name}-heldout.jsonl", held_out)
    epochs = args.epochs if model == "pocket-tools" else 1.0
    run = train(folder, configuration(model, seed, file, wrong, epochs))
    kept = runs / f"{folder.name}-scores.json"
    if not kept.is_file():
        began, found = time.perf_counter(), judge(str(run.final), str(asked))
        scores = {s.id.rpartition("/")[2]: float(p[-1]) for s, p in zip(found.solutions, found.right)}
        write_json(kept, {"scores": scores, "unscored": len(found.unscored), "seconds": time.perf_counter() - began})
    known = json.loads(kept.read_text())
    judged = [row for row in held_out if row["id"] in known["scores"]]
    labels, groups = [row["labels"][0] for row in judged], [dialogue(row) for row in judged]
    calls = [row["steps"][0].startswith("CALL") for row in judged]
    values = [known["scores"][row["id"]] for row in judged]
    return {
        "train_rows": len(learned), "epochs": epochs, "train_wrong": round(wrong, 4), "unscored": known["unscored"],
        **auc_interval(values, labels, groups), "of": of_kinds(values, labels, groups, calls),
        "minutes": round((float(run.summary["seconds"]) + known["seconds"]) / 60, 2),
    }  # fmt: skip


def of_kinds(
    values: Sequence[float], labels: Sequence[bool], groups: Sequence[str], calls: Sequence[bool]
) -> dict[str, Any]:
    """The same of calls and of words alone, where both verdicts occur."""
    found: dict[str, Any] = {}
    for name, kind in (("calls", True), ("words", False)):
        places = [i for i, call in enumerate(calls) if call is kind]
        if 0 < sum(labels[i] for i in places) < len(places):
            chosen = [values[i] for i in places], [labels[i] for i in places], [groups[i] for i in places]
            found[name] = auc_interval(*chosen)
    return found


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A row per model and seed, and one per reading without a model."""
    lines = ["| scored by | seed | rows | AUC | 95 % over dialogues | minutes |", "|---|---|---|---|---|---|"]
    for name, seeds in results.items():
        for seed, row in seeds.items():
            between = f"{row['low']:.3f} to {row['high']:.3f}"
            lines.append(f"| {name} | {seed} | {row.get('train_rows', '')} | {row['auc']:.3f} | {between} | "
                         f"{row.get('minutes', '')} |")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = os.environ.get("RLHF_TEST_DATA", ".")
    parser.add_argument("--runs", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--data", type=Path, default=Path(data, "taskmaster", "tm-4_reward.jsonl.gz"))
    parser.add_argument("--model", dest="models", action="append", default=[], help="beside pocket-tools")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--large-seeds", nargs="+", type=int, default=[0], help="of the models beside pocket-tools")
    parser.add_argument("--rows", type=int, default=800, help="training rows of the models beside pocket-tools")
    parser.add_argument("--epochs", type=float, default=2.0, help="of pocket-tools")
    parser.add_argument("--limit", type=int, help="only the first rows of the file, for a rehearsal")
    parser.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args()
    rows = read_turns(args.data)[: args.limit]
    others = [*args.models, *filter(None, [os.environ.get("RLHF_SMOLLM2_GGUF")])]
    jobs = [("pocket-tools", s) for s in args.seeds] + [(m, s) for m in dict.fromkeys(others) for s in args.large_seeds]
    results: dict[str, dict[str, Any]] = {}
    for model, seed in jobs:
        name = Path(model).stem if model != "pocket-tools" else model
        for reading, found in without_a_model(*split(rows, seed)).items():
            results.setdefault(reading, {})[str(seed)] = found
        print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
        results.setdefault(name, {})[str(seed)] = measured(args.runs, model, seed, rows, args)
        record = {"command": "python -m scripts.real.taskmaster_turns", "date": time.strftime("%Y-%m-%d")}
        facts = {"epochs": args.epochs, "rows": len(rows), "dialogues": len({dialogue(r) for r in rows})}
        write_json(args.record, {**record, **facts, "commit": commit(), "machine": machine(), "results": results})
        print(table(results), flush=True)


if __name__ == "__main__":
    main()
