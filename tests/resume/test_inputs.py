"""A run goes on with the models and the data that it read when it started, or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field
from safetensors.torch import load_file, save_file

from rlhf_core.cli.options import open_plugins
from rlhf_core.config.load import resolve
from rlhf_core.config.run import RunConfig
from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.sources import resolve_model
from rlhf_core.plugins.component import Config
from rlhf_core.runs.launch.inputs import check_inputs, inputs, pinned
from rlhf_core.types.errors import RunDirError

from .runs import check_same, read_run, train

ROWS = [{"prompt": f"What is {n} + 1?", "completion": str(n + 1)} for n in range(12)]


def silent(text: str) -> None: ...


def pocket(to: Path) -> Path:
    return Path(shutil.copytree(resolve_model("pocket").path, to))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, rows, and a run of three steps on them; not to be changed."""
    place = tmp_path_factory.mktemp("started")
    pocket(place / "model")
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ["threads=1", "trainer.max_steps=3", "trainer.batch_size=4", "trainer.checkpoint_every=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        options = ["--algo", "sft", "--model", "model", "--dataset", "./rows.jsonl", "--run-dir", "run"]
        assert train(*options, *(w for s in words for w in ("--set", s))) == 0
    return place


@pytest.fixture
def place(started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, whose run was killed before it wrote its final model."""
    copy = Path(shutil.copytree(started, tmp_path / "place"))
    shutil.rmtree(copy / "run" / "final")
    (copy / "run" / "summary.json").unlink()
    monkeypatch.chdir(copy)
    return copy


def scale_weights(model: Path) -> None:
    file = model / "model.safetensors"
    save_file({name: weight * 1.3 for name, weight in load_file(file).items()}, file, {"format": "pt"})


def add_a_word(model: Path) -> None:
    file = model / "chat_template.jinja"
    file.write_text(f"Hello {file.read_text()}")


def change_rope(model: Path) -> None:
    file = model / "config.json"
    text = file.read_text()
    settings = json.loads(text)
    settings["rope_parameters"] = {**settings.get("rope_parameters", {}), "rope_theta": 77.0}
    file.write_text(json.dumps(settings))


def add_a_template(model: Path) -> None:
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "default.jinja").write_text("{{ messages[0].content }}")


EDITS: list[tuple[Callable[[Path], Any], str]] = [
    (scale_weights, "model/model.safetensors is not what it was"),
    (add_a_word, "model/chat_template.jinja is not what it was"),
    (change_rope, "model/config.json is not what it was"),
    (add_a_template, "model/additional_chat_templates/default.jinja was added"),
    (lambda model: (model / "generation_config.json").unlink(), "model/generation_config.json is not there"),
    (lambda model: (model.parent / "rows.jsonl").write_text(json.dumps(ROWS[0])), "./rows.jsonl is not what it was"),
    (lambda model: shutil.rmtree(model), "model/config.json is not there"),
]


@pytest.mark.parametrize(("edit", "says"), EDITS)
def test_what_changed_since_the_start_is_refused(
    place: Path, capsys: Any, edit: Callable[[Path], Any], says: str
) -> None:
    before = (place / "run" / "metrics.jsonl").read_bytes()
    edit(place / "model")
    assert train("--resume", "run") == 2
    assert says in capsys.readouterr().err
    assert train("--resume", "run", "--set", "trainer.max_steps=5") == 2, "a longer run reads the same"
    assert (place / "run" / "metrics.jsonl").read_bytes() == before


def test_notes_times_and_copies_change_nothing(started: Path, place: Path) -> None:
    (place / "model" / "README.md").write_text("mine")
    shutil.move(place / "model", place / "other")
    shutil.copytree(place / "other", place / "model")
    (place / "rows.jsonl").write_bytes((place / "rows.jsonl").read_bytes())
    assert train("--resume", "run") == 0
    check_same(read_run(started / "run"), read_run(place / "run"))


def resolved(sections: dict[str, Any]) -> RunConfig:
    return resolve(open_plugins()[0], sugar={"trainer": {"name": "grpo"}, **sections})


def test_everything_that_settings_name_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("policy", "reward_model", "judge"):
        pocket(tmp_path / name)
    adapted = load_policy(ModelConfig(path="policy", lora=LoraSettings(r=2)))
    adapted.save(tmp_path / "final", merge=True)
    shutil.rmtree(tmp_path / "final" / "model.safetensors", ignore_errors=True)
    (tmp_path / "a.wav").write_bytes(b"sound")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "x", "audio": "a.wav"}) + "\n")
    (tmp_path / "held.jsonl").write_text("{}\n")
    parts = {
        "a": {"reward": {"name": "bradley_terry", "path": "reward_model"}},
        "b": {"reward": {"name": "judge", "judge": {"name": "local", "model": {"path": "judge"}}}},
    }
    config = resolved(
        {
            "model": {"path": "final/adapter"},
            "dataset": {"sources": [{"source": {"name": "jsonl", "path": "rows.jsonl", "heldout_path": "held.jsonl"}}]},
            "reward": {"name": "composite", "parts": parts},
        }
    )
    record = inputs(config, tmp_path / "run", silent)
    for name in (
        *("final/adapter/adapter_model.safetensors", "final/adapter, its base/model.safetensors"),
        *("final/adapter, beside it/chat_template.jinja", "rows.jsonl", "rows.jsonl, its sounds and pictures/a.wav"),
        *("held.jsonl", "reward_model/model.safetensors", "judge/config.json"),
    ):
        assert name in record, name
    for file in ("policy/config.json", "final/tokenizer.json", "a.wav", "judge/chat_template.jinja"):
        content = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(content + b" ")
        with pytest.raises(RunDirError, match="is not what it was"):
            check_inputs(record, config, tmp_path / "run", silent)
        (tmp_path / file).write_bytes(content)
    check_inputs(record, config, tmp_path / "run", silent)
    assert {"pocket/config.json"} <= inputs(resolved({"reward": {"name": "random"}}), tmp_path, silent).keys()


class Part(Config):
    path: str = ""
    notes: str = ""
    written: str = ""
    not_inputs = frozenset({"written"})
    parts: dict[str, Part] = Field(default_factory=dict)
    many: tuple[str, ...] = ()


NAMES = st.sampled_from(["a", "b.json", "c.jinja", "d/e.py", "d/f/g.bin"])


@settings(max_examples=60, deadline=None)
@given(files=st.sets(NAMES, min_size=1), depth=st.integers(0, 3), data=st.data())
def test_any_edit_of_any_file_at_any_depth_of_the_settings_is_seen(
    files: set[str], depth: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "read"
        for name in files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(name)
        field = data.draw(st.sampled_from(["path", "notes", "many"]))
        part = Part(**{field: (str(root),) if field == "many" else str(root), "written": str(root)})
        for _ in range(depth):
            part = Part(parts={"x": part})
        config: Any = part
        record = inputs(config, Path(folder) / "run", silent)
        assert len(record) == len(files)
        check_inputs(record, config, Path(folder) / "run", silent)
        name = data.draw(st.sampled_from(sorted(files)))
        edit = data.draw(st.sampled_from(["delete", "change", "add"]))
        if edit == "delete":
            (root / name).unlink()
        else:
            (root / (f"{name}x" if edit == "add" else name)).write_text("another")
        with pytest.raises(RunDirError):
            check_inputs(record, config, Path(folder) / "run", silent)
        assert inputs(Part(written=str(root)), Path(folder), silent) == {}  # pyright: ignore[reportArgumentType]
        assert inputs(config, root, silent) == {}, "what lies in the run is its own"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local copy of a hub model, of which nobody asks the hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "hub" / "models--nobody--tiny"
    for commit in ("a" * 40, "b" * 40):
        pocket(copy / "snapshots" / commit)
    (copy / "refs").mkdir()
    (copy / "refs" / "main").write_text("a" * 40)
    return copy


def test_a_hub_model_keeps_the_commit_that_it_started_with(hub: Path, tmp_path: Path) -> None:
    config = pinned(resolved({"model": {"path": "nobody/tiny"}, "reward": {"name": "random"}}))
    assert config.model.revision == "a" * 40
    (hub / "refs" / "main").write_text("b" * 40)
    assert pinned(config).model.revision == "a" * 40
    local = resolved({"reward": {"name": "random"}})
    assert pinned(local) is local


def test_a_run_goes_on_with_its_commit_after_the_branch_moved(hub: Path, tmp_path: Path) -> None:
    config = pinned(resolved({"model": {"path": "nobody/tiny"}, "reward": {"name": "random"}}))
    record = inputs(config, tmp_path, silent)
    (hub / "refs" / "main").write_text("b" * 40)
    check_inputs(record, config, tmp_path, silent)


def test_a_hub_reward_model_that_moved_is_refused(hub: Path, tmp_path: Path) -> None:
    config = resolved({"reward": {"name": "bradley_terry", "path": "nobody/tiny"}})
    record = inputs(config, tmp_path, silent)
    assert record["nobody/tiny"] == "commit " + "a" * 40
    check_inputs(record, config, tmp_path, silent)
    (hub / "refs" / "main").write_text("b" * 40)
    with pytest.raises(RunDirError, match="nobody/tiny is not what it was"):
        check_inputs(record, config, tmp_path, silent)


def test_a_plan_without_a_record_is_said(place: Path, caplog: Any) -> None:
    plan = json.loads((place / "run" / "plan.json").read_text())
    assert plan.pop("inputs")
    assert plan.pop("digest")
    (place / "run" / "plan.json").write_text(json.dumps(plan))
    assert train("--resume", "run") == 0
    assert "has no record of what it read when it started" in caplog.text
    assert "plan.json' has no digest" in caplog.text


def test_settings_that_were_edited_in_the_run_are_named_and_not_used(place: Path, caplog: Any) -> None:
    file = place / "run" / "config.yaml"
    assert train("--resume", "run") == 0
    assert "config.yaml" not in caplog.text
    file.write_text(file.read_text().replace("max_steps: 3", "max_steps: 9"))
    (place / "run" / "summary.json").unlink()
    assert train("--resume", "run") == 0
    assert "config.yaml' has trainer.max_steps 9: not used; plan.json has 3" in caplog.text


def change(*keys: str, to: Any) -> Callable[[dict[str, Any]], Any]:
    def edit(plan: dict[str, Any]) -> None:
        for key in keys[:-1]:
            plan = plan[key]
        assert plan.get(keys[-1]) != to
        plan[keys[-1]] = to

    return edit


PLAN_EDITS = [
    change("config", "trainer", "max_steps", to=9),
    change("config", "trainer", "optimizer", "learning_rate", to=0.5),
    change("config", "model", "path", to="other"),
    change("seed", to=77),
    change("world_size", to=2),
    change("inputs", "model/config.json", to="0" * 16),
    change("components", to=[]),
    change("more", to=1),
    lambda plan: plan.pop("inputs"),
    lambda plan: plan["inputs"].popitem(),
]


@pytest.mark.parametrize("edit", PLAN_EDITS, ids=range(len(PLAN_EDITS)))
def test_a_plan_that_was_edited_is_refused(place: Path, capsys: Any, edit: Callable[[dict[str, Any]], Any]) -> None:
    file = place / "run" / "plan.json"
    plan = json.loads(file.read_text())
    edit(plan)
    file.write_text(json.dumps(plan))
    before = {path: path.read_bytes() for path in (place / "run").rglob("*") if path.is_file()}
    assert train("--resume", "run") == 2
    err = capsys.readouterr().err
    assert "plan.json' is not what the run wrote" in err
    assert "--set KEY=VALUE" in err
    assert {path: path.read_bytes() for path in (place / "run").rglob("*") if path.is_file()} == before


def test_another_layout_of_the_same_plan_and_an_extended_one_are_taken(place: Path) -> None:
    file = place / "run" / "plan.json"
    plan = json.loads(file.read_text())
    file.write_text(json.dumps(dict(reversed(plan.items()))))
    assert train("--resume", "run", "--set", "trainer.max_steps=4") == 0
    extended = json.loads(file.read_text())
    assert extended["digest"] != plan["digest"]
    assert train("--resume", "run", "--set", "trainer.max_steps=5") == 0


@pytest.mark.parametrize("text", ["trainer: [", "\0", "5", "a: 1\na: 2", "5: {7: x}", "trainer: {5: x, y: z}"])
def test_settings_in_the_run_that_nobody_can_read_are_named_and_not_used(place: Path, caplog: Any, text: str) -> None:
    (place / "run" / "config.yaml").write_text(text)
    assert train("--resume", "run") == 0
    assert "config.yaml' " in caplog.text
    assert "not used" in caplog.text
