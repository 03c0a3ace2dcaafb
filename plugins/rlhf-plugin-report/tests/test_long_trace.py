"""A page of a long run: what is read of its trace, and how much is held at once."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

from rlhf_plugin_report.trace_index import TraceIndex

TOKENS = 200


def trace(file: Path, steps: int) -> Path:
    """One prompt a step, with two completions of 200 tokens; a line in the middle is broken."""
    numbers = [0.123456] * TOKENS
    with file.open("w") as out:
        for step in range(steps):
            completions: list[dict[str, Any]] = [
                {"text": f"answer {step}", "tokens": TOKENS, "score": score, "completion_ids": [7] * TOKENS}
                | dict.fromkeys(("logprobs", "trainer_logprobs", "entropies"), numbers)
                for score in (0.25, 0.75)
            ]
            row = {"step": step, "event": "prompt", "prompt_id": f"p{step}", "prompt": "2 + 2?"}
            out.write(json.dumps({**row, "completions": completions}) + "\n")
            out.write("{broken\n" if step == steps // 2 else "")
    return file


def test_memory_does_not_grow_with_the_length_of_the_trace(tmp_path: Path) -> None:
    """The numbers of tokens, 12 kB of a completion, are read and let go; 100 bytes stay."""
    file = trace(tmp_path / "trace.jsonl", 1500)
    TraceIndex(file)  # what is imported and kept once
    tracemalloc.start()
    index = TraceIndex(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index.completions) == 3000
    assert peak < 3000 * 150 + 300_000
    assert file.stat().st_size > 20 * peak


def test_what_is_shown_is_read_again_from_its_place(tmp_path: Path) -> None:
    index = TraceIndex(trace(tmp_path / "trace.jsonl", 10))
    assert index.broken == 1
    shown = list(index.shown(index.completions, [1, 12, 13]))
    assert [(row["step"], place, one["text"]) for row, place, one in shown] == [
        (0, 1, "answer 0"),
        (6, 0, "answer 6"),
        (6, 1, "answer 6"),
    ]
    tokens, scores, steps = index.completions.measured("score")
    assert (set(tokens.tolist()), scores[:2].tolist(), steps[-2:].tolist()) == ({TOKENS}, [0.25, 0.75], [9, 9])
