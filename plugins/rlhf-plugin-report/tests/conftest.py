"""Real runs for pages, and what a page holds."""

from __future__ import annotations

import base64
import gzip
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
    packed, texts = unpacked(page)
    kinds, shapes = packed["kinds"], packed["shapes"]

    def mapping(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda row: {key: of(value) for key, value in zip(shapes[row[0]], row[1:], strict=True)}

    readers: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(kinds["texts"], texts.__getitem__),
        **dict.fromkeys(kinds["values"], lambda n: packed["values"][n]),
        **dict.fromkeys(kinds["pieces"], lambda places: [texts[n] for n in places]),
        **dict.fromkeys(kinds["mappings"], mapping(lambda value: value)),
        **dict.fromkeys(kinds["textMappings"], mapping(texts.__getitem__)),
    }
    return [
        {
            key: readers.get(key, lambda v: v)(value)
            for key, value in zip(packed["shapes"][row[0]], row[1:], strict=True)
        }
        for row in packed["rows"]
    ]


def unpacked(page: str) -> tuple[dict[str, Any], list[str]]:
    """What was packed, and its texts."""
    text = re.findall(r'<script type="text/plain" id="data">(.*?)</script>', page, re.DOTALL)[0]
    data = gzip.decompress(base64.b64decode(text))
    end = 4 + int.from_bytes(data[:4], "big")
    packed, stream = json.loads(data[4:end]), iter(data[end:])

    def number() -> int:
        first = next(stream)
        if first < 192:
            return first
        if first < 255:
            return 192 + (first - 192) * 256 + next(stream)
        return int.from_bytes(bytes(next(stream) for _ in range(3)), "big")

    return packed, ["".join(packed["words"][number()] for _ in range(number())) for _ in range(packed["texts"])]


def change_rows(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite a JSONL file."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        change(row)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
