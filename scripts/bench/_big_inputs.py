"""Large inputs for measurements: a million rows of prompts, and a run of thousands of steps grown from a short one."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas")
THINGS = ("apples", "books", "coins", "shells", "stamps", "cards", "pears", "rings", "nuts", "balls")


def write_prompts(file: Path, rows: int) -> None:
    """Prompts with an answer, about 103 bytes each; no two are alike."""
    rng = random.Random(0)
    with file.open("w") as out:
        for _ in range(rows):
            first, second = rng.randrange(10, 100_000), rng.randrange(10, 100_000)
            has = f"{rng.choice(NAMES)} has {first} {rng.choice(THINGS)}"
            row = {"prompt": f"{has} and gets {second} more. How many are there in all?", "answer": str(first + second)}
            out.write(json.dumps(row) + "\n")


def grow_run(short: Path, folder: Path, steps: int) -> int:
    """A run's folder as if it had made so many steps: its rows again and again with other steps, scores and prompts'
    names. Returns the bytes of the trace.
    """
    folder.mkdir(parents=True)
    for name in ("plan.json", "config.yaml", "environment.json", "summary.json", "samples.jsonl"):
        shutil.copy(short / name, folder / name)
    shutil.copytree(short / "final", folder / "final")
    for name in ("metrics.jsonl", "trace.jsonl"):
        rows = [json.loads(line) for line in (short / name).read_text().splitlines()]
        with (folder / name).open("w") as out:
            for step in range(1, steps + 1):
                out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in _at(rows, step))
    return (folder / "trace.jsonl").stat().st_size


def _at(rows: list[dict[str, Any]], step: int) -> Iterator[Mapping[str, Any]]:
    rng = random.Random(step)
    for row in rows:
        changed = {**row, "step": step}
        if "completions" in row:
            changed["prompt_id"] = f"{row['prompt_id']}-{step}"
            changed["completions"] = [{**c, "score": round(rng.random(), 3)} for c in row["completions"]]
        yield changed
