"""The work that both sides of ``grpo_step`` do, and how a side talks to the process that times it."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

PROMPTS = (
    "Question: Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
    "How many clips did she sell altogether in April and May?\nAnswer:",
    "Question: Weng earns 12 dollars an hour for babysitting. Yesterday she did just 50 minutes of babysitting. "
    "How many dollars did she earn, and how did you find out?\nAnswer:",
    "Question: A garden is 15 metres long and 8 metres wide, and a fence around it costs 6 dollars a metre. "
    "What does the whole fence cost?\nAnswer:",
    "Question: James writes a letter of 3 pages to 2 different friends twice a week, all the year round. "
    "How many pages of letters does he write in a year?\nAnswer:",
)
GROUP = 8
NEW_TOKENS = 64
MICRO_BATCH = 8
LEARNING_RATE = 1e-6


def variety(text: str) -> float:
    """The reward: distinct characters per character. Cheap, and different for almost any two texts."""
    return len(set(text)) / len(text) if text else 0.0


class Gate:
    """Lets the timing process start each step, and tells it how long the step took.

    Whatever else the side prints goes to standard error.
    """

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.started, self.cpu_started = time.perf_counter(), time.process_time()

    def step_done(self, **row: Any) -> None:
        """Report the step that just ended and wait for the next "go"; anything else ends the process."""
        row["seconds"] = time.perf_counter() - self.started
        row["cpu_seconds"] = time.process_time() - self.cpu_started
        row["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(row), file=self.out, flush=True)
        if sys.stdin.readline().strip() != "go":
            os._exit(0)
        self.started, self.cpu_started = time.perf_counter(), time.process_time()


def write_prompts(folder: Path) -> Path:
    """The prompts as JSON lines."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS))
    return path
