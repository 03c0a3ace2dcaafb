"""Real runs for pages, and what a page holds."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlhf_core
from rlhf_plugin_report.page import render
from rlhf_plugin_report.read import read_page
from rlhf_plugin_report.stored import open_run

SETTINGS = {
    "trainer.steps": 2,
    "trainer.rollout_batch_size": 8,
    "trainer.eval_samples": 3,
    "trainer.eval_every": 2,
    "trainer.sampling.max_tokens": 8,
    "trainer.epochs_per_rollout_batch": 2,
    "monitors": ["health"],
    "threads": 1,
}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GRPO run of two steps, two updates each."""
    rows = [{"prompt": f"What is {a} + {b}?"} for a in range(5) for b in range(5)]
    folder = tmp_path_factory.mktemp("report") / "first"
    rlhf_core.train("grpo", dataset=rows, reward=places, settings=SETTINGS, run_dir=folder, progress=False)
    return folder


def places(samples: Any) -> list[float]:
    """A reward that no two neighbours share."""
    return [float(n % 4) for n, _ in enumerate(samples)]


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A run that a test may change."""
    return Path(shutil.copytree(run, tmp_path / "second"))


@pytest.fixture(scope="session")
def page(run: Path) -> str:
    return page_of(run)


def page_of(*runs: Path) -> str:
    return render(read_page([open_run(str(run)) for run in runs], 100))


def data_of(page: str) -> list[dict[str, Any]]:
    """The completions, unpacked as the page's script does it."""
    text = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[0]
    packed = json.loads(text)
    kinds = packed["kinds"]
    readers: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(kinds["texts"], lambda n: packed["texts"][n]),
        **dict.fromkeys(kinds["values"], lambda n: packed["values"][n]),
        **dict.fromkeys(kinds["pieces"], lambda places: [packed["texts"][n] for n in places]),
        **dict.fromkeys(kinds["mappings"], lambda row: dict(zip(packed["shapes"][row[0]], row[1:], strict=True))),
    }
    return [
        {
            key: readers.get(key, lambda v: v)(value)
            for key, value in zip(packed["shapes"][row[0]], row[1:], strict=True)
        }
        for row in packed["rows"]
    ]


def change_rows(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite a JSONL file."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        change(row)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
