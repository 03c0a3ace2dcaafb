"""What is shown while a run works: a bar, a renewed line in a notebook, lines with the time that is left elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rlhf_core.cli import progress
from rlhf_core.cli.progress import StepPrinter

CONFIG: Any = SimpleNamespace(trainer=SimpleNamespace(name="grpo"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_say_how_long_it_will_take(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    printer = StepPrinter(CONFIG, Path("run"))
    clock[0] += 30  # loading, and the ensemble: no step
    printer.step(1, 20, {"loss": 0.5, "step": 4.0})
    clock[0] += 4
    printer.step(2, 20, {"loss": 0.4, "step": 4.0})
    first, second = capsys.readouterr().err.splitlines()
    assert first == "step 1/20  loss 0.500  (30 s, about 76 s left)"
    assert second == "step 2/20  loss 0.400  (34 s, about 72 s left)"
    printer.step(20, 20, {"loss": 0.4, "step": 4.0})
    assert "left" not in capsys.readouterr().err


def test_the_time_that_is_left_falls_step_by_step_where_steps_are_long(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for seconds, shown in (
        (10.0, range(1, 21)),
        (6.0, (1, 2, 3, 5, 7, 9, 10, 12, 14, 15, 17, 19, 20)),
        (1.0, (1, 2, 3, 5, 10, 15, 20)),
    ):
        printer = StepPrinter(CONFIG, Path("run"))
        for step in range(1, 21):
            clock[0] += seconds
            printer.step(step, 20, {"step": seconds})
        lines = capsys.readouterr().err.splitlines()
        assert [int(line.partition("/")[0].removeprefix("step ")) for line in lines] == list(shown)
        left = [int(n) for n in re.findall(r"about (\d+) s left", " ".join(lines))]
        assert left == sorted(left, reverse=True)
        assert left[-1] == seconds * (20 - shown[-2])


def test_the_bar_says_how_long_it_takes_where_a_step_takes_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "Console", lambda **options: Console(force_terminal=True, width=100, **options))
    printer = StepPrinter(CONFIG, Path("run"))
    seconds = [0.0]
    monkeypatch.setattr(printer.bar, "get_time", lambda: seconds[0])
    printer.bar.start_task(printer.task)
    for step in (1, 2, 3):
        seconds[0] += 120
        printer.step(step, 5, {})
    assert printer.bar.tasks[0].time_remaining == 240


def test_long_work_between_steps_is_shown_from_its_tenth_second(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    printer = StepPrinter(CONFIG, Path("run"))
    with printer.work("training the reward ensemble", 100) as advance:
        for _ in range(10):
            clock[0] += 2.5
            advance(5)
    assert capsys.readouterr().err.splitlines() == [
        "training the reward ensemble: 20 of 100  (10 s, about 40 s left)",
        "training the reward ensemble: 40 of 100  (20 s, about 30 s left)",
    ]
    with printer.work("evaluation", 8) as advance:
        clock[0] += 1
        advance(8)
    with StepPrinter(CONFIG, Path("run"), quiet=True).work("evaluation", 8) as advance:
        clock[0] += 60
        advance(8)
    assert capsys.readouterr().err == "", "nothing about what is short, and nothing where nothing is wanted"


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "Console", lambda **options: Console(force_terminal=True, width=100, **options))
    with StepPrinter(CONFIG, Path("run")) as printer:
        with printer.work("evaluation", 8) as advance:
            advance(8)
            printer.bar.refresh()
        printer.step(3, 20, {"loss": 0.5})
        printer.bar.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "evaluation" in shown
    assert "8/8" in shown
    assert "3/20" in shown
    assert "loss 0.500" in shown
    assert [task.description for task in printer.bar.tasks] == ["grpo"]


def test_a_notebook_gets_one_line_that_is_renewed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    shown: list[tuple[str, str]] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(("renewed", data["text/plain"])))

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        shown.append(("new", data["text/plain"]))
        return handle

    notebook = types.ModuleType("IPython.display")
    notebook.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    monkeypatch.setattr(progress, "Console", lambda **options: Console(force_jupyter=True, **options))
    with StepPrinter(CONFIG, Path("run")) as printer:
        with printer.work("evaluation", 8) as advance:
            clock[0] += 1
            advance(4)
        clock[0] += 1
        printer.step(1, 2, {"loss": 0.5})
        printer.step(2, 2, {"loss": 0.4})
    assert [kind for kind, _ in shown] == ["new", "renewed", "renewed"]
    assert shown[0][1].startswith("evaluation: 4 of 8")
    assert shown[-1][1].startswith("grpo: step 2/2  loss 0.400")
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_run_reports_its_evaluations_and_its_ensemble(rlhf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    sizes = ("trainer.steps=1", "trainer.rollout_batch_size=16", "trainer.eval_samples=6", "trainer.gold_samples=6")
    reward = ("reward.max_pairs=64", "reward.heldout_pairs=8", "reward.members=2")
    options = [word for s in (*sizes, *reward) for word in ("--set", s)]
    out = rlhf("train", "--algo", "grpo", "--reward", "ensemble", *options, "--run-dir", "run")
    assert out.code == 0, out.err
    counted = re.findall(r"training the reward ensemble: (\d+) of (\d+)", out.err)
    assert counted[-1][0] == counted[-1][1], "every update of every member"
    assert re.search(r"evaluation: 6 of 6", out.err)
    assert json.loads((Path("run") / "summary.json").read_text())["steps"] == 1


def test_an_offline_run_reports_its_evaluations(rlhf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    options = ("--set", "trainer.max_steps=1", "--set", "trainer.eval_samples=20", "--set", "trainer.batch_size=4")
    out = rlhf("train", "--algo", "sft", *options, "--run-dir", "run")
    assert out.code == 0, out.err
    assert re.search(r"evaluation: 20 of 20", out.err)


def test_a_run_says_what_it_does_before_it_imports_anything_heavy(tmp_path: Path) -> None:
    """The first line, which names algorithm and model, comes before torch does; the second before the model is read."""
    code = (
        "import sys, rlhf_core.cli.main as cli, click\n"
        "echo = click.echo\n"
        "def heard(text=None, **options):\n"
        "    echo(f'{text} | torch {\"torch\" in sys.modules}', **options)\n"
        "click.echo = heard\n"
        "cli.main(['train', '--algo', 'sft', '--model', './nowhere', '--dataset', 'pocket/assistant'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    first, *more = done.stderr.splitlines()
    assert first == "sft, ./nowhere: checking model, data and memory | torch False"
    assert "there is no model folder './nowhere'" in "".join(more)


@pytest.mark.slow
def test_a_run_says_when_it_loads_and_a_quiet_one_says_nothing(rlhf: Any) -> None:
    run = ("train", "--algo", "sft", "--dataset", "pocket/assistant", "--set", "dataset.limit=64")
    small = ("--set", "trainer.max_steps=1", "--set", "trainer.sample_prompts=0")
    lines = rlhf(*run, *small, "--run-dir", "run").err.splitlines()
    assert lines[:2] == [
        "sft, pocket: checking model, data and memory",
        "loading model and data; the run is kept in run",
    ]
    assert lines[2].startswith("trained: ")
    assert lines[3].startswith("step 1/1 ")
    assert rlhf(*run, *small, "--run-dir", "quiet", "--json").err == ""
