"""`rlhf_core.train`: Python objects as parts of a run, the run that comes back, and what the caller keeps."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlhf_core
from rlhf_core.config import ConfigError, PluginError
from rlhf_core.data import DatasetError
from rlhf_core.losses import LossOutput
from rlhf_core.python_api.config import splits_of
from rlhf_core.python_api.run import Run
from rlhf_core.rewards import Score
from rlhf_core.types.errors import RunDirError

SMALL = {
    "trainer.steps": 2,
    "trainer.rollout_batch_size": 8,
    "trainer.group_size": 4,
    "trainer.eval_samples": 2,
    "trainer.sampling.max_tokens": 8,
    "trainer.checkpoint_every": 1,
}
ROWS = [{"id": f"{a}+{b}", "prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(5) for b in range(5)]


def letters(samples: Any) -> list[float]:
    """A number that differs wherever completions do."""
    return [sum(map(ord, sample.completion)) % 7 for sample in samples]


def small(tmp_path: Path, **changes: Any) -> Run:
    arguments: dict[str, Any] = {"dataset": ROWS, "reward": letters, "settings": SMALL, "run_dir": tmp_path / "run"}
    return rlhf_core.train("grpo", **{**arguments, **changes}, progress=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that docs/python.md begins with."""
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    folder = tmp_path_factory.mktemp("docs")
    names: dict[str, Any] = {}
    exec(code.replace("runs/digits", str(folder / "digits")), names)
    return names["run"]


def test_a_run_of_python_objects_gives_tables_model_and_summary(run: Run) -> None:
    assert run.status == "completed"
    assert list(run.metrics.index) == [0, 1, 2]
    assert run.metrics.loc[1:, "reward/mean"].between(0, 1).all()
    assert {"prompt", "completion"} <= set(run.samples.columns)
    assert len(run.trace)
    assert run.summary["steps"] == 2
    assert isinstance(run.model(), torch.nn.Module)
    assert run.tokenizer().decode(run.tokenizer()("What").input_ids, skip_special_tokens=True) == "What"
    assert "completed" in run._repr_html_()
    assert rlhf_core.load_run(run.path).status == "completed"


def test_the_plan_says_that_objects_are_not_in_it(run: Run) -> None:
    reward, source = run.config["reward"], run.config["dataset"]["sources"][0]["source"]
    assert reward["description"].endswith("digits")
    assert (reward["name"], reward["reproducible_from_file"]) == ("python", False)
    assert source["description"] == "rows in memory: 25 train, 0 heldout"
    assert source["digest"]


@pytest.mark.slow
def test_the_same_rows_from_a_file_train_the_same(tmp_path: Path) -> None:
    """The rows' label decides ids and seeds: the file is given the label of rows in memory."""
    run = small(tmp_path / "memory")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    other = small(tmp_path, dataset=str(file), settings={**SMALL, "dataset.label": "python"})
    assert other.metrics["reward/mean"].equals(run.metrics["reward/mean"])
    assert other.metrics["loss"].equals(run.metrics["loss"])


def test_rows_come_in_several_forms() -> None:
    import datasets
    import pandas as pd

    whole = {"train": ROWS, "heldout": []}
    assert splits_of(datasets.Dataset.from_list(ROWS)) == whole
    assert splits_of(pd.DataFrame(ROWS)) == whole
    assert splits_of(row for row in ROWS) == whole
    split = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS[5:]), test=datasets.Dataset.from_list(ROWS[:5]))
    assert splits_of(split) == {"train": ROWS[5:], "heldout": ROWS[:5]}


def test_a_loss_function_trains(tmp_path: Path) -> None:
    seen: list[int] = []

    def loss(batch: Any) -> Any:
        seen.append(batch.logprobs_BT.ndim)
        loss_BT = -batch.advantages_BT * batch.logprobs_BT
        return LossOutput(loss_BT) if len(seen) % 2 else loss_BT

    run = small(tmp_path, loss=loss, dataset=iter(ROWS), settings={**SMALL, "trainer.steps": 1})
    assert seen
    assert set(seen) == {2}
    assert run.config["loss"]["name"] == "python"


def test_the_callers_process_is_left_as_it_was(tmp_path: Path) -> None:
    def state() -> tuple[Any, ...]:
        return (
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
            torch.backends.cuda.cudnn_sdp_enabled(),
            torch.get_rng_state().tolist(),
            np.random.get_state()[1].tolist(),  # type: ignore[index]
            random.getstate(),
            signal.getsignal(signal.SIGINT),
            list(logging.getLogger().handlers),
            dict(os.environ),
        )

    def sets_a_variable(samples: Any) -> list[float]:
        os.environ["TORCHINDUCTOR_CACHE_DIR_TEST"] = "as torch does when it is first imported"
        return letters(samples)

    torch.set_default_dtype(torch.float64)
    try:
        before = state()
        run = small(tmp_path, reward=sets_a_variable, settings={**SMALL, "trainer.steps": 1, "threads": 1})
        assert state() == before
    finally:
        torch.set_default_dtype(torch.float32)
    assert next(run.model().parameters()).dtype is torch.float32


def test_a_wrong_number_of_scores_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"reward .*python.* returned 1 scores for \d samples"):
        small(tmp_path, reward=lambda samples: [1.0])


@pytest.mark.slow
def test_a_runs_model_gets_prompts_as_the_run_wrote_them(tmp_path: Path) -> None:
    run = small(tmp_path, settings={**SMALL, "trainer.steps": 1, "model.prompt_format": "raw"})
    raw = rlhf_core.generate("pocket", "What is 2 + 3?", max_tokens=2, prompt_format="raw")[0][0].prompt_ids
    assert rlhf_core.generate(run, "What is 2 + 3?", max_tokens=2)[0][0].prompt_ids == raw


def test_a_missing_score_is_not_zero() -> None:
    rows = [{"prompt": "a", "completion": "b"}] * 4
    scores = rlhf_core.score(rows, lambda samples: [None, float("nan"), Score(0.5), 1])
    assert [(s.status.value, s.value) for s in scores] == [("missing", None), ("error", None), ("ok", 0.5), ("ok", 1.0)]


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"dataset": []}, DatasetError, "no rows"),
        ({"dataset": [1, 2]}, DatasetError, "row 1 of 'train' is a int"),
        ({"dataset": {"validation": ROWS}}, DatasetError, "no split 'train'"),
        ({"reward": 3}, ConfigError, "reward is a int"),
        ({"nproc": 2}, ConfigError, "2 processes"),
        ({"settings": {"trainer.stps": 2}}, ConfigError, "stps"),
        ({"settings": {1: 2}}, ConfigError, "key 1"),
    ],
)
def test_what_cannot_work_is_refused_and_writes_nothing(
    changes: dict[str, Any], error: type[Exception], match: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        small(tmp_path, **changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_resume_goes_on_with_the_same_objects_and_refuses_others(tmp_path: Path) -> None:
    whole = small(tmp_path / "whole", settings={**SMALL, "trainer.steps": 3})

    stopped = small(tmp_path / "cut", settings={**SMALL, "trainer.steps": 3})
    for file in ("summary.json", "final"):
        path = stopped.path / file
        path.unlink() if path.is_file() else shutil.rmtree(path)
    shutil.rmtree(stopped.path / "checkpoints" / "step-000003")
    stopped = stopped.reload()
    assert stopped.status == "interrupted", "no process works on it"

    with pytest.raises(ConfigError, match=r"the run's (reward|dataset) is a Python object"):
        stopped.resume(progress=False)
    with pytest.raises(ConfigError, match="is not the Python object"):
        stopped.resume(reward=lambda samples: [0.0] * len(samples), dataset=ROWS, progress=False)
    with pytest.raises(ConfigError, match="takes no 'rewards'"):
        stopped.resume(rewards=letters, progress=False)
    resumed = stopped.resume(reward=letters, dataset=ROWS, progress=False)
    assert resumed.status == "completed"
    assert resumed.metrics["loss"].equals(whole.metrics["loss"])


@pytest.mark.slow
def test_the_command_line_says_how_to_resume_such_a_run(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run.path, folder)
    (folder / "summary.json").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_core.cli.main", "train", "--resume", str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "load_run(RUN).resume(" in done.stderr


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import rlhf_core, sys; rlhf_core.train; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_cell_of_a_table_is_none_and_not_the_text_nan() -> None:
    import pandas as pd

    table = pd.DataFrame({"prompt": ["a", "b"], "answer": [None, "4"], "weight": [0.5, None]})
    assert splits_of(table)["train"] == [
        {"prompt": "a", "answer": None, "weight": 0.5},
        {"prompt": "b", "answer": "4", "weight": None},
    ]


def test_a_run_whose_folder_is_gone_is_not_an_empty_one(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "copy")
    copied = rlhf_core.load_run(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    for read in (lambda: copied.samples, lambda: copied.trace, copied.model):
        with pytest.raises(RunDirError, match="is gone"):
            read()


def test_seconds_are_columns_of_numbers(run: Run) -> None:
    seconds = run.metrics.filter(like="time/")
    assert "time/update" in seconds.columns
    assert {str(kind) for kind in seconds.dtypes} == {"float64"}
