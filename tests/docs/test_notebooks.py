"""Notebooks are what their scripts say, each runs, and the first cell says what to do where no wheel is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from matplotlib import pyplot
from nbclient import NotebookClient

from rlhf_core.plugins.registry import Registry
from scripts.reference import notebooks

TOPICS = [
    "01_data_exploration",
    "02_sft_training",
    "03_reward_modeling",
    "04_ppo_training",
    "05_dpo_training",
    "06_ppo_vs_dpo_comparison",
    "07_cai_rlaif",
    "08_reward_ensemble",
    "09_prm_vs_orm",
    "10_lora_vs_full_finetuning",
    "11_synthetic_sft_data",
    "12_scaling_analysis",
    "13_grpo_vs_ppo",
    "13_agent_eval_benchmark",
    "14_iterative_dpo",
    "15_agentic_posttraining",
    "16_gaia_benchmark",
    "17_tts_rlhf",
    "18_distributed_fsdp",
    "19_multi_agent_systems",
    "20_code_execution_agent",
    "21_context_window_ablation",
    "22_rubric_vs_preference",
]
FILES = sorted(notebooks.FOLDER.glob("*.ipynb"))
QUICK = {"16_gaia_benchmark", "19_multi_agent_systems", "21_context_window_ablation"}
LONG = {"06_ppo_vs_dpo_comparison", "09_prm_vs_orm", "13_grpo_vs_ppo", "15_agentic_posttraining"}
"""`make test-all` alone runs them."""
IN_A_KERNEL = "08_reward_ensemble"


def marks(name: str) -> list[pytest.MarkDecorator]:
    """When a notebook is run."""
    return [] if name in QUICK else [pytest.mark.long] if name in LONG else [pytest.mark.slow]


def test_every_topic_has_a_notebook_that_is_what_its_script_says() -> None:
    pages = notebooks.pages()
    assert sorted(file.stem for file in pages) == sorted(TOPICS)
    assert [file.stem for file in FILES] == sorted(TOPICS)
    assert [file.name for file, text in pages.items() if file.read_text() != text] == []


def test_they_have_no_outputs_and_name_studies_that_exist() -> None:
    known = {entry.name for entry in Registry(disabled=()).entries("study")}
    for file in FILES:
        cells = nbformat.read(file, as_version=4).cells
        assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)
        names = notebooks.studies(file.with_suffix(".py").read_text())
        assert names or file.stem == "18_distributed_fsdp"
        assert set(names) <= known, file.name
        last = " ".join(cell.source for cell in cells[-len(names) :])
        assert all(f"rlhf study run {name}" in last for name in names)


def test_a_badge_needs_a_public_address() -> None:
    file = notebooks.FOLDER / "06_ppo_vs_dpo_comparison.py"
    badge = notebooks.opened(file, {"Source": "https://github.com/acme/rlhf.git"})
    assert badge.endswith("github/acme/rlhf/blob/main/docs/notebooks/06_ppo_vs_dpo_comparison.ipynb)")
    assert "make dist" in notebooks.opened(file, {"Home": "https://acme.org"})


def test_the_first_cell_says_what_to_do_without_wheels(tmp_path: Path) -> None:
    """In an interpreter without any packages."""
    first = nbformat.read(FILES[0], as_version=4).cells[1].source
    command = [sys.executable, "-I", "-S", "-c", first]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("FileNotFoundError: rlhf is not installed")
    assert "make dist" in message
    assert str(tmp_path / "dist") in message


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with caches of its own; figures are drawn without a screen."""
    monkeypatch.chdir(tmp_path)
    for name in ("RLHF_CACHE", "RLHF_HOME", "RLHF_AUDIO"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("RLHF_REPORT", "0")
    pyplot.switch_backend("Agg")
    return tmp_path


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=marks(file.stem), id=file.stem) for file in FILES],
)
def test_it_runs(file: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells, one after the other in this process."""
    names: dict[str, Any] = {}
    for cell in nbformat.read(file, as_version=4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{file.name}, {cell.id}", "exec"), names)
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    empty = [axis.get_title() for figure in figures for axis in figure.axes if not (axis.patches or axis.lines)]
    pyplot.close("all")
    assert figures
    assert empty == []
    said = capsys.readouterr().out
    assert "| document:line |" in said or "**" in said or "not installed" in said


@pytest.mark.slow
def test_a_kernel_shows_pictures_and_tables(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = nbformat.read(notebooks.FOLDER / f"{IN_A_KERNEL}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=250, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "text/markdown", "text/html"} <= kinds
    assert "002:217" in json.dumps(outputs)
