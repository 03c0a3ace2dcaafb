"""Order, processes and failures of several studies, and a listing that imports none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlhf_core.types.errors import RlhfError
from rlhf_study.config import StudyConfig
from rlhf_study.runner import run_studies, waves


class Halves:
    """Half of each seed; seed 3 fails."""

    def __init__(self, config: StudyConfig) -> None:
        self.config = config

    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        if seed == 3:
            raise ValueError("three has no half")
        return {"half": seed / 2}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        return " ".join(f"{seed}:{found['half']}" for seed, found in results.items())


class HalvesConfig(StudyConfig):
    """Divides."""

    name: str = "halves"

    def build(self, ctx: Any) -> Halves:
        return Halves(self)


class AfterConfig(HalvesConfig):
    """Divides what another study has made."""

    after: ClassVar[tuple[str, ...]] = ("halves", "not asked for")


def run(configs: dict[str, StudyConfig], out: Path) -> tuple[dict[str, str], list[str]]:
    lines: list[str] = []
    return run_studies(configs, out, 1, "rlhf study run halves", lines.append), lines


def test_a_study_comes_after_those_whose_runs_it_reads(tmp_path: Path) -> None:
    configs = {"later": AfterConfig(), "halves": HalvesConfig()}
    assert list(waves(configs)) == [["halves"], ["later"]]
    tables, lines = run({k: c.model_copy(update={"seeds": (1, 2)}) for k, c in configs.items()}, tmp_path)
    assert tables == {"later": "1:0.5 2:1.0", "halves": "1:0.5 2:1.0"}
    assert lines == ["halves, seed 1: done", "halves, seed 2: done", "later, seed 1: done", "later, seed 2: done"]
    record = json.loads((tmp_path / "later" / "result.json").read_text())
    assert record["seeds"] == {"1": {"half": 0.5}, "2": {"half": 1.0}}
    assert record["command"] == "rlhf study run halves"
    assert record["machine"]["cores"]


def test_studies_that_name_each_other_are_run_together() -> None:
    class Other(HalvesConfig):
        after: ClassVar[tuple[str, ...]] = ("later",)

    assert list(waves({"later": AfterConfig(), "halves": Other()})) == [["later", "halves"]]


def test_other_seeds_are_done_when_one_fails(tmp_path: Path) -> None:
    with pytest.raises(RlhfError, match="halves, seed 3: ValueError: three has no half"):
        run({"halves": HalvesConfig(seeds=(1, 3, 4))}, tmp_path)
    assert sorted(f.parent.name for f in tmp_path.glob("halves/*/figures.json")) == ["seed-1", "seed-4"]
    assert not (tmp_path / "halves" / "result.json").exists()


def test_listing_and_showing_import_no_study_and_nothing_heavy() -> None:
    code = (
        "import sys\nfrom rlhf_core.cli.main import main\n"
        "for words in (['study', 'list'], ['study', 'show', 'lambda_sweep']):\n"
        "    try: main(words)\n    except SystemExit as end: assert not end.code\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'transformers', 'rlhf_studies', 'pydantic')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    assert "What does an ensemble's uncertainty penalty buy?" in out.stdout
    assert "| lambda 0.5 | 0.839 (0.800 to 0.866) |" in out.stdout
    assert out.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_seeds_in_processes_of_their_own(call: Callable[..., Any], tmp_path: Path) -> None:
    words = ["study", "run", "pocket_truth", "--set", "limit=2", "--seeds", "0", "1", "--jobs", "2", "--out", tmp_path]
    ran = call(*words)
    assert ran.code == 0, ran.err
    assert "| claims | " in ran.out
    assert sorted(f.parent.name for f in tmp_path.glob("*/*/figures.json")) == ["seed-0", "seed-1"]
