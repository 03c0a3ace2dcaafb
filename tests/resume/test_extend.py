"""A run that is over goes on for more steps, and equals one that was as long from the start, bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .cases import CASES, Case
from .runs import Left, check_same, read_run, train

Words = Callable[[Case], list[str]]
Whole = Callable[[str], Path]

EXTENDED = {
    "grpo": ("trainer.steps=2", "trainer.steps=3"),
    "ppo": ("trainer.steps=2", "trainer.steps=3"),
    "sft": ("trainer.max_steps=2", "trainer.max_steps=4"),
    "dpo": ("trainer.max_steps=2", "trainer.max_steps=null"),
}
"""Case -> the setting of a shorter run, and the one that makes it as long as the case's. grpo, ppo and sft evaluate at
the step where the shorter run ends."""


def set_to(text: str) -> list[str]:
    return ["--set", text]


Extended = Callable[[str], tuple[Left, Path]]


@pytest.fixture(scope="module")
def extended(words: Words, tmp_path_factory: pytest.TempPathFactory) -> Extended:
    """What a case's shorter run left, and its folder when it had been made as long as the case's: not to be changed."""

    @cache
    def run_of(name: str) -> tuple[Left, Path]:
        folder, (short, long) = tmp_path_factory.mktemp("extended"), EXTENDED[name]
        run = folder / "run"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RLHF_CACHE", str(folder / "cache"))
            assert train(*words(CASES[name]), *set_to(short), "--run-dir", str(run)) == 0
            before = read_run(run)
            assert train("--resume", str(run), *set_to(long)) == 0
        return before, run

    return run_of


MARKS = {"grpo": (), "dpo": pytest.mark.slow}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, pytest.mark.long)) for n in EXTENDED])
def test_equals_a_run_that_was_as_long_from_the_start(
    name: str, extended: Extended, whole: Whole, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    (before, run), (_, long) = extended(name), EXTENDED[name]
    assert read_run(run).metrics != before.metrics
    check_same(read_run(run), read_run(whole(name)))
    plan = json.loads((run / "plan.json").read_text())
    (row,) = plan["extensions"]
    key, _, value = long.partition("=")
    assert row["changes"][key][1] == json.loads(value)
    assert plan["config"]["trainer"][key.removeprefix("trainer.")] == json.loads(value)
    assert train("--resume", str(run)) == 0, "it is complete"
    assert read_run(run).summary["status"] == "completed"


@pytest.mark.slow
def test_iterative_dpo_makes_up_for_the_evaluation_after_its_earlier_last_iteration(
    words: Words, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands behind the iteration's own row instead of before it; otherwise nothing differs."""
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    assert train(*words(CASES["iterative_dpo"]), *set_to("trainer.steps=1"), "--run-dir", str(run)) == 0
    assert train("--resume", str(run), *set_to("trainer.steps=2")) == 0

    def rows(left: Left) -> list[str]:
        return sorted(json.dumps(row, sort_keys=True) for row in left.metrics)

    extended, uninterrupted = read_run(run), read_run(whole("iterative_dpo"))
    assert rows(extended) == rows(uninterrupted)
    steps = {row["step"] for row in uninterrupted.metrics if "eval/reward/mean" in row}
    assert len(steps) == 3, "before, between and after two iterations"
    assert extended.tensors.keys() == uninterrupted.tensors.keys()
    assert all(
        tensor.equal(uninterrupted.tensors[file][name])
        for file, tensors in extended.tensors.items()
        for name, tensor in tensors.items()
    )


@pytest.mark.slow
def test_an_extension_that_was_killed_goes_on(extended: Extended, whole: Whole, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(extended("grpo")[1], run)
    (run / "summary.json").unlink()
    shutil.rmtree(run / "final")
    shutil.rmtree(run / "checkpoints" / "step-000003")
    assert train("--resume", str(run)) == 0
    check_same(read_run(run), read_run(whole("grpo")))


@pytest.fixture
def copied(whole: Whole, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    shutil.copytree(whole("grpo"), run)
    return run


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["trainer.steps=5", "trainer.optimizer.learning_rate=1"], "trainer.optimizer.learning_rate: "),
        (["trainer.group_size=2"], "only trainer.steps, trainer.max_steps, trainer.epochs"),
        (["seed=3"], "seed: 0 -> 3"),
        (["trainer.steps=2"], "trainer.steps can only be raised: 3 -> 2"),
    ],
)
def test_other_settings_are_refused_by_name(
    copied: Path, settings: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = (copied / "plan.json").read_text()
    assert train("--resume", str(copied), *(word for text in settings for word in set_to(text))) == 2
    assert says in capsys.readouterr().err
    assert (copied / "plan.json").read_text() == plan
    assert (copied / "summary.json").is_file()


def test_no_checkpoint_no_extension(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copied / "checkpoints")
    assert train("--resume", str(copied), "--set", "trainer.steps=5") == 2
    assert "has no checkpoint to continue from" in capsys.readouterr().err
    assert (copied / "summary.json").is_file()


@pytest.mark.parametrize(
    ("trainer", "summary", "says"),
    [
        ({"optimizer": {"schedule": "cosine"}}, {}, "the cosine learning rate now spans trainer.steps 8"),
        ({"rollouts": {"max_staleness": 2}}, {}, "rollouts are sampled ahead"),
        ({"batch_size": 8, "epochs": 1.0}, {"train_examples": 30}, "the last batch so far was smaller"),
        ({"batch_size": 8, "epochs": 1.0}, {"train_examples": 32}, ""),
        ({"optimizer": {"schedule": "constant"}}, {}, ""),
    ],
)
def test_what_an_extension_means_is_said(trainer: dict[str, Any], summary: dict[str, Any], says: str) -> None:
    from rlhf_core.config.plan import Plan
    from rlhf_core.runs.launch.resume import meaning

    row = {"at_step": 4, "changes": {"trainer.steps": [4, 8]}}
    first, *more = meaning(Plan({"trainer": trainer}, (), {}, 0, 1, extensions=(row,)), summary)
    assert first == "extended after step 4: trainer.steps 4 -> 8"
    assert len(more) == bool(says)
    assert says in "".join(more)


def test_from_python(copied: Path) -> None:
    from rlhf_core import load_run

    run = load_run(copied).resume(settings={"trainer.steps": 4, "trainer.checkpoint_every": 0}, progress=False)
    assert (run.status, run.summary["steps"]) == ("completed", 4)
    with pytest.raises(Exception, match=r"trainer\.group_size: 4 -> 2"):
        run.resume(settings={"trainer": {"group_size": 2}})
