"""What somebody else can write against the public surfaces alone: a training loop, a trained reward model, a command.

Each is built to a wheel from a copy outside the repository, installed, and run.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.check.imports import TOPICS, imported

from .conftest import Commands, install

FIXTURES = Path(__file__).parents[1] / "fixtures"
PACKAGES = ("acme_raft", "acme_scorer", "acme_report")


class Outside:
    """The command of an environment in which the packages are installed."""

    def __init__(self, commands: Commands, folder: Path) -> None:
        self.commands, self.folder = commands, folder

    def rlhf(self, *args: object) -> subprocess.CompletedProcess[str]:
        return self.commands(*args, cwd=self.folder)

    def train(self, name: str, *args: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Summary and metrics of a finished run in the folder ``name``."""
        out = self.rlhf("train", "--run-dir", name, *args)
        assert out.returncode == 0, out.stdout + out.stderr
        return self.read(name)

    def read(self, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return json.loads((self.folder / name / "summary.json").read_text()), [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory, other_python: str, commands: Commands) -> Outside:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    copies = [elsewhere / name for name in PACKAGES]
    for copy in copies:
        shutil.copytree(FIXTURES / copy.name, copy, ignore=shutil.ignore_patterns("__pycache__"))
    install(other_python, *copies)  # pip builds a wheel of each
    for copy in copies:
        shutil.rmtree(copy)
    return Outside(commands, elsewhere)


@pytest.mark.parametrize("name", PACKAGES)
def test_it_imports_the_public_surfaces_only(name: str) -> None:
    modules = {
        module for file in (FIXTURES / name).rglob("*.py") for _, module in imported(ast.parse(file.read_text()))
    }
    assert {m for m in modules if m.startswith("rlhf_core")} <= set(TOPICS)


SIZES = ("--set", "threads=1", "--set", "trainer.eval_samples=4", "--set", "trainer.checkpoint_every=2")


@pytest.fixture(scope="module")
def raft(outside: Outside) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return outside.train("raft", "--algo", "acme_raft", "--set", "trainer.steps=4", *SIZES)


@pytest.mark.slow
def test_a_trainer_with_a_loop_of_its_own(outside: Outside, raft: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    summary, rows = raft
    assert (summary["status"], summary["steps"], summary["algo"]) == ("completed", 4, "acme_raft")
    assert summary["evaluation_before"].keys() == {"eval/reward"}
    assert [row["step"] for row in rows if row.get("grad_norm", 0.0) > 0] == [1, 2, 3, 4]
    assert (outside.folder / "raft" / "final" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("raft")
def test_its_run_is_resumed_exactly(outside: Outside) -> None:
    """A run that lost its last two steps makes them again, with the same numbers."""
    shutil.copytree(outside.folder / "raft", outside.folder / "again")
    shutil.rmtree(outside.folder / "again" / "checkpoints" / "step-000004")
    (outside.folder / "again" / "summary.json").unlink()
    shutil.rmtree(outside.folder / "again" / "final")
    out = outside.rlhf("train", "--resume", "again")
    assert out.returncode == 0, out.stdout + out.stderr
    assert timeless(outside.read("again")[1]) == timeless(outside.read("raft")[1])
    weights = [(outside.folder / run / "final" / "model.safetensors").read_bytes() for run in ("raft", "again")]
    assert weights[0] == weights[1]


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "time"} for row in rows]


@pytest.mark.slow
def test_a_trained_reward_model_and_a_command(outside: Outside) -> None:
    summary, rows = outside.train("scorer", "--algo", "acme_scorer", "--set", "trainer.max_steps=20", *SIZES)
    assert summary["status"] == "completed"
    assert rows[-1]["eval/accuracy"] >= 0.5
    answers = [
        {"prompt": "3 + 4 =", "completion": text, "source": source, "answer": "7"}
        for source, text in (("right", "7"), ("wrong", "8"))
    ]
    (outside.folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    trained = ("--reward", "acme_scorer", "--set", "path=scorer/final")
    out = outside.rlhf("reward", "by-source", *trained, "--input", "answers.jsonl", "--json")
    assert out.returncode == 0, out.stdout + out.stderr
    means = json.loads(out.stdout)
    assert means.keys() == {"right", "wrong"}
    assert means["right"] != means["wrong"]
    out = outside.rlhf("reward", "by-source", *trained[:2], "--set", "path=nowhere", "--input", "answers.jsonl")
    assert out.returncode == 2
    assert "--set reward.path=RUN/final" in out.stderr
