"""The command line in this process, and one small training run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ARITHMETIC = (
    "prompts",
    "--dataset",
    "pocket/arithmetic",
    "--verifier",
    "numeric",
    "--max-tokens",
    "12",
    "--set",
    "workers=1",
)

BENCHMARK = (
    "{name: prompts, dataset: {name: pocket/arithmetic}, verifier: numeric, limit: 8, workers: 1, "
    "sampling: {max_tokens: 12}}"
)


@pytest.fixture
def arithmetic(rlhf: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """``arithmetic("--n", 4)``: the report of an evaluation of the pocket model on sums."""

    def run(*args: object) -> dict[str, Any]:
        ran = rlhf("eval", *ARITHMETIC, "--json", *args)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Sequence[Mapping[str, Any]]], Path]:
    """``write("x.jsonl", rows)``: the file."""

    def make(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        return path

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with a benchmark, a checkpoint after each; not to be changed."""
    from rlhf_core.cli.main import main

    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.raises(SystemExit) as caught:
        main(
            [
                "train",
                "--algo",
                "grpo",
                "--reward",
                "verifier",
                "--dataset",
                "pocket/arithmetic",
                "--set",
                "threads=1",
                "--set",
                "trainer.steps=2",
                "--set",
                "trainer.rollout_batch_size=16",
                "--set",
                "trainer.eval_samples=4",
                "--set",
                "trainer.eval_every=1",
                "--set",
                "trainer.checkpoint_every=1",
                "--set",
                f"benchmarks=[{BENCHMARK}]",
                "--run-dir",
                str(folder),
                "--json",
            ]
        )
    assert caught.value.code == 0
    return folder


def gsm8k_rows(folder: Path, count: int, split: str = "test") -> list[dict[str, str]]:
    """The first rows of GSM8K."""
    with gzip.open(folder / "gsm8k" / f"{split}.jsonl.gz", "rt") as file:
        return [json.loads(line) for _, line in zip(range(count), file)]


def result_row(i: int, value: float | None, **more: Any) -> dict[str, Any]:
    """A row of ``rows.jsonl``; without a value its verdict timed out."""
    base = {
        "id": f"p{i}",
        "sample": 0,
        "value": value,
        "status": "ok" if value is not None else "timeout",
        "parts": {},
        "detail": "",
        "category": "right",
        "finish_reason": "eos",
        "stop": None,
        "tokens": 3,
        "mean_logprob": -0.1,
        "completion": "x",
        "strict": value,
        "lenient": value,
        "answer": "1",
        "prompt": [{"content": "q"}],
    }
    return {**base, **more}
