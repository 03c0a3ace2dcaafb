"""A file that is not what was written is noticed before it is loaded; what is still whole is used."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.data.atomic import whole_folder
from rlhf_core.data.manifest import MANIFEST, find_damage
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy, load_tokenizer
from rlhf_core.runs.checkpoint import CheckpointStore
from rlhf_core.types.errors import ModelError

from .runs import check_same, read_run, train

SFT = ("--algo", "sft", "--set", "trainer.max_steps=3", "--set", "trainer.batch_size=4")
SETTINGS = ("threads=1", "trainer.eval_samples=2", "trainer.checkpoint_every=1", "trainer.keep_checkpoints=9")
WEIGHTS = "model/model.safetensors"


def flip_one_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a checkpoint after each of its three steps; not to be changed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert train(*SFT, *(w for s in SETTINGS for w in ("--set", s)), "--run-dir", str(run)) == 0
    return run


@pytest.fixture
def run(whole_run: Path, tmp_path: Path) -> Path:
    """A copy of it, killed before it wrote its final model."""
    copy = Path(shutil.copytree(whole_run, tmp_path / "run"))
    shutil.rmtree(copy / "final")
    (copy / "summary.json").unlink()
    return copy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "damage", "says"),
    [
        (WEIGHTS, flip_one_bit, f"{WEIGHTS} is not what was written"),
        ("state.safetensors", cut_short, "state.safetensors has "),
        ("model/tokenizer.json", Path.unlink, "model/tokenizer.json is not there"),
        (MANIFEST, cut_short, f"{MANIFEST} cannot be read"),
    ],
)
def test_a_run_goes_on_from_the_newest_whole_checkpoint(
    whole_run: Path, run: Path, caplog: Any, file: str, damage: Callable[[Path], Any], says: str
) -> None:
    damage(run / "checkpoints" / "step-000003" / file)
    with caplog.at_level(logging.WARNING, "rlhf"):
        assert train("--resume", str(run)) == 0
    assert "the checkpoint of step 3 is damaged" in caplog.text
    assert says in caplog.text
    assert "going on from step 2" in caplog.text
    assert find_damage(run / "checkpoints" / "step-000003") == [], "the step was made and saved again"
    shutil.rmtree(run / "checkpoints" / "step-000003.damaged")
    check_same(read_run(whole_run), read_run(run))


def test_no_checkpoint_is_whole(run: Path, capsys: Any) -> None:
    for checkpoint in (run / "checkpoints").iterdir():
        flip_one_bit(checkpoint / WEIGHTS)
    assert train("--resume", str(run)) == 2
    err = capsys.readouterr().err
    assert "every checkpoint in" in err
    assert all(f"step {n}: {WEIGHTS} is not what was written" in err for n in (1, 2, 3))


def test_a_checkpoint_without_its_manifest_is_damaged(run: Path, caplog: Any) -> None:
    (run / "checkpoints" / "step-000003" / MANIFEST).unlink()
    with caplog.at_level(logging.WARNING, "rlhf"):
        assert train("--resume", str(run)) == 0
    assert f"the checkpoint of step 3 is damaged ({MANIFEST} is missing" in caplog.text


def test_a_damaged_final_model_is_refused_and_written_again(whole_run: Path, tmp_path: Path, caplog: Any) -> None:
    copy = Path(shutil.copytree(whole_run, tmp_path / "run"))
    flip_one_bit(copy / "final" / "model.safetensors")
    with pytest.raises(ModelError, match=r"final' is damaged: model\.safetensors is not what was written"):
        load_policy(ModelConfig(path=str(copy / "final")))
    assert train("--resume", str(copy)) == 0
    assert "is damaged (model.safetensors is not what was written): it is written again" in caplog.text
    check_same(read_run(whole_run), read_run(copy))
    load_policy(ModelConfig(path=str(copy / "final")))


def test_a_part_of_a_checkpoint_is_checked_on_its_own(run: Path) -> None:
    model = run / "checkpoints" / "step-000002" / "model"
    load_policy(ModelConfig(path=str(model)))
    flip_one_bit(model / "config.json")
    with pytest.raises(ModelError, match=r"config\.json is not what was written"):
        load_policy(ModelConfig(path=str(model)))


def test_the_manifest_lists_every_file_once(whole_run: Path) -> None:
    checkpoint = whole_run / "checkpoints" / "step-000003"
    listed = [
        (manifest.parent / name).relative_to(checkpoint).as_posix()
        for manifest in checkpoint.rglob(MANIFEST)
        for name in json.loads(manifest.read_text())["files"]
    ]
    there = [f.relative_to(checkpoint).as_posix() for f in checkpoint.rglob("*") if f.is_file()]
    assert sorted(listed) == sorted(name for name in there if name != MANIFEST)


UNREAD = ["notes.md", "README.md", ".gitattributes", ".cache/huggingface/trees", "LICENSE", "NOTICE.txt", "curve.png"]
READ = [
    *("more.safetensors", "adapter_config.json", "added_tokens.json", "pytorch_model.bin", "modeling.py"),
    *("additional_chat_templates/default.jinja", "chat_template.json", "processor_config.json", "tekken.json"),
    *("adapter/adapter_config.json", "1_Pooling/config.json", "custom_generate/generate.py", "text/model.safetensors"),
]


@pytest.mark.parametrize("name", [*UNREAD, *READ])
def test_a_file_that_was_added_is_not_loaded_with_the_others(run: Path, name: str) -> None:
    model = sorted(run.glob("checkpoints/*/model"))[-1]
    (model / name).parent.mkdir(parents=True, exist_ok=True)
    (model / name).write_text("{}")
    expected = [] if name in UNREAD else [f"{name} was added"]
    assert find_damage(model) == expected
    assert find_damage(model.parent) == [f"model/{row}" for row in expected]


LETTERS = st.text("abcXYZ019_-", min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    folders=st.lists(LETTERS, max_size=3), name=LETTERS, suffix=st.sampled_from(["", ".json", ".jinja", ".py", ".x"])
)
def test_whatever_is_not_listed_is_refused_at_any_depth(folders: list[str], name: str, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        with whole_folder(Path(place) / "model") as folder:
            (folder / "config.json").write_text("{}")
        file = Path(place, "model", *folders, f"{name}{suffix}")
        file.parent.mkdir(parents=True, exist_ok=True)
        assert find_damage(Path(place, "model")) == []
        file.write_text("")
        assert find_damage(Path(place, "model")) == [f"{file.relative_to(Path(place, 'model'))} was added"]


def test_a_template_in_a_folder_of_its_own_is_refused_by_every_loader(whole_run: Path, tmp_path: Path) -> None:
    final = Path(shutil.copytree(whole_run / "final", tmp_path / "final"))
    (final / "additional_chat_templates").mkdir()
    (final / "additional_chat_templates" / "default.jinja").write_text("{{ messages[0].content }} another")
    for load in (load_policy, load_tokenizer):
        with pytest.raises(ModelError, match=r"additional_chat_templates/default\.jinja was added"):
            load(ModelConfig(path=str(final)))


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        with store.writing(step) as folder:
            (folder / "state.json").write_text("{}")
    assert store.steps() == [3, 4]
    assert store.newest_undamaged() == 4
