"""An offset in a checkpoint is a claim about a file: it is checked before the run goes on."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.data.jsonl import JsonlFile, append_lines, begins_with, read_jsonl
from rlhf_core.runs.checkpoint import Checkpoint
from rlhf_core.types.errors import RunDirError

from .runs import check_same, cut_back, read_run, train


def test_a_rank_that_cannot_reach_the_trace_names_it(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match=r"cannot write '.*gone/trace\.jsonl': No such file"):
        append_lines(tmp_path / "gone" / "trace.jsonl", "{}\n")
    for line in ("1\n", "2\n"):
        append_lines(tmp_path / "trace.jsonl", line)
    assert (tmp_path / "trace.jsonl").read_text() == "1\n2\n"


def delete(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


def replace(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"step": 1', b'"step": 7', 1) + content)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps with a checkpoint after each; not to be changed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    words = [
        "threads=1",
        "dataset.limit=128",
        "trainer.max_steps=3",
        "trainer.batch_size=4",
        "trainer.checkpoint_every=1",
    ]
    words += [
        "trainer.eval_samples=2",
        "trainer.sample_prompts=2",
        "trainer.keep_checkpoints=9",
        "trainer.eval_every=1",
    ]
    assert train("--algo", "sft", *(w for s in words for w in ("--set", s)), "--run-dir", str(run)) == 0
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """It after two steps, as if killed in the third."""
    cut_back(whole, 2, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("damage", [delete, cut, replace])
def test_metrics_that_are_not_what_they_were_are_refused(
    run: Path, capsys: Any, damage: Callable[[Path], None]
) -> None:
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-2]))
    damage(metrics)
    left = metrics.read_bytes() if metrics.exists() else None
    assert train("--resume", str(run)) == 2
    err = capsys.readouterr().err
    assert "metrics.jsonl' no longer begins with the" in err
    assert "put the file back" in err
    assert (metrics.read_bytes() if metrics.exists() else None) == left, "nothing was cut"
    assert not (run / "summary.json").exists()


@pytest.mark.parametrize("damage", [delete, replace])
def test_other_records_begin_anew_with_a_note(run: Path, caplog: Any, damage: Callable[[Path], None]) -> None:
    samples = run / "samples.jsonl"
    damage(samples)
    left = samples.read_bytes() if samples.exists() else None
    with caplog.at_level(logging.WARNING, "rlhf"):
        assert train("--resume", str(run)) == 0
    assert "samples.jsonl' no longer begins with the" in caplog.text
    assert "it begins anew" in caplog.text
    assert {row["step"] for row in read_jsonl(samples)} == {3}, "no row is spliced"
    kept = run / "samples.damaged.jsonl"
    assert (kept.read_bytes() if kept.exists() else None) == left


def test_what_came_after_the_checkpoint_may_be_lost_or_torn(whole: Path, run: Path) -> None:
    for name in ("metrics", "trace", "samples"):
        with (run / f"{name}.jsonl").open("ab") as file:
            file.write(b'{"step": 3, "torn')
    assert train("--resume", str(run)) == 0
    check_same(read_run(whole), read_run(run))


@pytest.mark.parametrize("text", ["{", "[]", "5", "\xff", '"x"', "[" * 5000])
@pytest.mark.parametrize("name", ["plan.json", "summary.json"])
def test_a_damaged_record_is_named_with_what_to_do(
    whole: Path, tmp_path: Path, capsys: Any, name: str, text: str
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / name).write_bytes(text.encode("latin-1"))
    assert train("--resume", str(run)) == 2
    err = capsys.readouterr().err
    assert f"{name}' is damaged" in err
    assert "fix: " in err
    if name == "summary.json":
        (run / name).unlink()
        assert train("--resume", str(run)) == 0


OFFSETS: list[Any] = [5, None, [], [1], {"a": 1}, ["x", "y"], [None, "y"]]


@pytest.mark.parametrize("offset", OFFSETS, ids=repr)
def test_offsets_of_another_form_name_the_checkpoint(tmp_path: Path, offset: Any) -> None:
    checkpoint = Checkpoint(tmp_path / "step-000002", {"step": 2, "offsets": {"metrics": offset}})
    with pytest.raises(RunDirError, match=r"step-000002/state\.json' is damaged[\s\S]*remove the checkpoint's folder"):
        _ = checkpoint.offsets
    for state in ({}, {"offsets": offset}):
        with pytest.raises(RunDirError, match="is damaged"):
            _ = Checkpoint(tmp_path, {"step": 2, **state}).offsets
    assert Checkpoint(tmp_path, {"offsets": {"metrics": [5, "ab"]}}).offsets == {"metrics": (5, "ab")}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.text("ab", max_size=2), st.integers()), max_size=4), st.data())
def test_any_cut_or_edit_of_the_beginning_is_seen(rows: list[dict[str, int]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "a.jsonl"
        file = JsonlFile(path)
        for row in rows:
            file.append(row)
        offset = file.offset()
        file.append({"later": 1})
        file.close()
        assert begins_with(path, offset)
        assert JsonlFile(path, offset[0]).offset() == offset
        content = path.read_bytes()
        if rows:
            at = data.draw(st.integers(0, len(content) - 1))
            path.write_bytes(content[:at])
            assert begins_with(path, offset) == (at >= offset[0])
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            assert begins_with(path, offset) == (at >= offset[0])
        shutil.rmtree(place, ignore_errors=True)
        Path(place).mkdir()
        assert begins_with(path, offset) == (not rows)
