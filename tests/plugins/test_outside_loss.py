"""A loss that somebody else wrote: built to a wheel outside the workspace, installed, tested, trained with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .conftest import Commands, call, environment, install

SOURCE = Path(__file__).parents[1] / "fixtures" / "acme_gspo"


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory, other_python: str) -> Path:
    """Build the wheel from a copy, install it, and return the copy."""
    copy = tmp_path_factory.mktemp("elsewhere") / "acme_gspo"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    out = call(
        [other_python, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check", str(copy)],
        env=environment(),
    )
    assert out.returncode == 0, out.stdout + out.stderr
    wheels = list((copy / "dist").glob("*.whl"))
    assert [w.name for w in wheels] == ["acme_gspo-1.2.0-py3-none-any.whl"]
    install(other_python, *wheels)
    return copy


@pytest.mark.long  # its kit in the tests of a package: test_scaffold.py
@pytest.mark.slow
def test_its_own_tests_pass(acme: Path, other_python: str, tmp_path: Path) -> None:
    out = call(
        [other_python, "-m", "pytest", "-p", "no:cacheprovider", str(acme / "tests")], env=environment(), cwd=tmp_path
    )
    assert out.returncode == 0, out.stdout


def test_it_is_about_25_lines_of_code(acme: Path) -> None:
    lines = [row for f in (acme / "acme_gspo").glob("*.py") for row in f.read_text().splitlines() if row.strip()]
    assert len([row for row in lines if '"""' not in row and "import" not in row]) <= 25


@pytest.mark.slow
@pytest.mark.usefixtures("acme")
def test_a_run_trains_with_it(commands: Commands, tmp_path: Path) -> None:
    run = tmp_path / "run"
    chosen = ("--loss", "acme_gspo", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic")
    sizes = ("steps=2", "rollout_batch_size=16", "eval_samples=4")
    small = [word for size in sizes for word in ("--set", f"trainer.{size}")]
    out = commands("train", *chosen, *small, "--run-dir", run, cwd=tmp_path)
    assert out.returncode == 0, out.stdout + out.stderr
    planned = {c["kind"]: c for c in json.loads((run / "plan.json").read_text())["components"]}
    assert planned["loss"] == {
        "kind": "loss",
        "name": "acme_gspo",
        "distribution": "acme-gspo",
        "version": "1.2.0",
        "value": "acme_gspo.config:AcmeGspoConfig",
    }
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("completed", 2)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any(row.get("grad_norm", 0.0) > 0 for row in rows)
