"""What a recipe makes, keeps, makes again and refuses; every command is the real one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path("runs/recipes/r")
STAGES: dict[str, Any] = {
    "prefs": {"kind": "pairs", "gold": True, "count": 12, "n": 3, "max_tokens": 24},
    "reward": {
        "kind": "train",
        "algo": "reward_model",
        "dataset": "${stages.prefs.data}",
        "trainer": {"max_steps": 1, "eval_samples": 2, "batch_size": 4},
        "threads": 1,
    },
    "scored": {"kind": "score", "model": "${stages.reward.model}", "input": "answers.jsonl", "show": ["mean"]},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipe")


@pytest.fixture
def made(recipe: Any, finished: Path) -> Any:
    """The three stages, made once for all tests; each has its own copy."""
    Path("answers.jsonl").write_text('{"prompt": "What pet does Ada have?", "completion": "A cat."}\n')
    if not (finished / "runs").exists():
        ran = recipe(STAGES)
        assert ran.code == 0, ran.err
        assert statuses() == {"prefs": "done", "reward": "done", "scored": "done"}
        shutil.copytree("runs", finished / "runs")
    else:
        shutil.copytree(finished / "runs", "runs")
    return recipe


def summary() -> dict[str, Any]:
    return {row["stage"]: row for row in json.loads((ROOT / "summary.json").read_text())["stages"]}


def statuses() -> dict[str, str]:
    return {name: row["status"] for name, row in summary().items()}


def with_steps(steps: int) -> dict[str, Any]:
    trainer = {**STAGES["reward"]["trainer"], "max_steps": steps}
    return {**STAGES, "reward": {**STAGES["reward"], "trainer": trainer}}


def test_what_is_made_is_taken_from_the_cache(made: Any) -> None:
    before = summary()
    ran = made(STAGES)
    assert ran.code == 0
    assert set(statuses().values()) == {"cached"}
    assert before["scored"]["figures"]["mean"] is not None
    assert [row["figures"] for row in summary().values()] == [row["figures"] for row in before.values()]
    assert "stage" in ran.out
    assert "scored" in ran.out
    assert "runs/recipes/r/report.html" in ran.out
    assert (ROOT / "report.html").is_file()


@pytest.mark.slow
def test_a_change_reruns_its_stage_and_what_depends_on_it(made: Any) -> None:
    ran = made(with_steps(2))
    assert ran.code == 0
    assert statuses() == {"prefs": "cached", "reward": "done", "scored": "done"}
    assert "trainer.max_steps: 1 -> 2" in ran.err
    assert made(STAGES).code == 0
    assert set(statuses().values()) == {"cached"}, "the earlier results are kept"


def test_another_input_reruns_only_what_reads_it(made: Any) -> None:
    Path("answers.jsonl").write_text('{"prompt": "What pet does Ada have?", "completion": "No idea."}\n')
    ran = made(STAGES)
    assert statuses() == {"prefs": "cached", "reward": "cached", "scored": "done"}
    assert "answers.jsonl has other content" in ran.err


def test_another_version_of_a_plugin_reruns_what_it_made(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_plugin_recipes import content

    version = content.metadata.version
    newer = {"rlhf-plugin-datagen": "0.2.0"}
    monkeypatch.setattr(content.metadata, "version", lambda name: newer.get(name) or version(name))
    rows = {row["stage"]: row["what"] for row in json.loads(made(STAGES, "--dry-run", "--json").out)}
    assert rows["prefs"] == "made again, for rlhf-plugin-datagen 0.1.0 -> 0.2.0"
    assert rows["reward"] == "runs after prefs, unless they make the same as before"


def test_the_code_of_a_plugin_in_development_counts_as_its_version(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_plugin_recipes import content

    code = content._code_of_editable
    monkeypatch.setattr(content, "_code_of_editable", lambda name: "new" if "datagen" in name else code(name))
    rows = {row["stage"]: row["what"] for row in json.loads(made(STAGES, "--dry-run", "--json").out)}
    assert rows["prefs"] == "made again, for rlhf-plugin-datagen has other content"


def test_the_code_is_that_of_the_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_plugin_recipes.content import _code_of_editable

    info = tmp_path / "acme_rlhf-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-rlhf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf.loss]\nacme = acme_rlhf_code.loss:Config\n")
    package = tmp_path / "acme_rlhf_code"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "loss.py").write_text("SCALE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _code_of_editable("acme-rlhf") == "", "a wheel's version says it"
    (info / "direct_url.json").write_text('{"url": "file:///acme", "dir_info": {"editable": true}}')
    before = _code_of_editable("acme-rlhf")
    assert before
    (package / "loss.py").write_text("SCALE = 2\n")
    assert _code_of_editable("acme-rlhf") != before


def test_what_is_shown_of_a_cached_stage_is_what_the_file_asks_for(made: Any) -> None:
    shown = {**STAGES, "scored": {**STAGES["scored"], "show": ["completions", "lenght"]}}
    assert made(shown).code == 0
    assert statuses()["scored"] == "cached"
    assert summary()["scored"]["figures"]["lenght"] == "not there"
    assert "mean" not in summary()["scored"]["figures"]


def test_an_end_that_several_figures_have_is_none_of_them(tmp_path: Path) -> None:
    from rlhf_plugin_recipes.figures import figures_of

    rates = {"wins": {"gold": {"rate": 0.25}, "reward": {"rate": 0.5}}}
    (tmp_path / "result.json").write_text(json.dumps(rates))
    shown = figures_of(tmp_path, ["rate", "reward.rate"])
    assert shown == {"rate": "2 figures end so, as wins.gold.rate and wins.reward.rate", "reward.rate": 0.5}


def test_what_makes_another_result_makes_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    from rlhf_core.cli.main import cli
    from rlhf_plugin_recipes.content import key_of, key_parts
    from rlhf_plugin_recipes.read import read_recipe
    from rlhf_plugin_recipes.stage_plan import StagePlan

    monkeypatch.chdir(tmp_path)

    def key(stage: dict[str, Any]) -> str:
        Path("r.yaml").write_text(json.dumps({"stages": {"a": stage}}))
        with click.Context(cli):
            read = read_recipe(Path("r.yaml")).stages[0]
            return key_of(key_parts(StagePlan(read, read.settings, ()), {}))

    made = {"judge": "anthropic", "count": 2}
    assert key({**made, "kind": "preferences"}) != key({**made, "kind": "demonstrations"})
    other = {"kind": "command", "run": "reward score", "input": "notes"}
    assert key({**other, "outputs": {"data": "a.jsonl"}}) != key({**other, "outputs": {"data": "b.jsonl"}})
    for name in ("principles.md", "notes.txt"):
        keys = set[str]()
        for text in ("be kind", "be curt"):
            Path(name).write_text(text)
            keys.add(key({**made, "kind": "preferences", "constitution": name}))
        assert len(keys) == 2, name


def test_the_seconds_of_interrupted_attempts_count(tmp_path: Path) -> None:
    import os
    import time

    from rlhf_plugin_recipes.kinds import KINDS
    from rlhf_plugin_recipes.read import Stage
    from rlhf_plugin_recipes.store import Store

    store, stage = Store(tmp_path), Stage("a", KINDS["generate"], "generate", {}, (), ())
    folder = store.begin(stage, "key", {}, "r")
    (folder / "stage.log").touch()
    os.utime(folder / "stage.log", (time.time() + 50, time.time() + 50))  # as if killed after 50 s
    store.begin(stage, "key", {}, "r")
    (folder / "result.json").write_text("{}")
    assert store.record(store.finish(stage, "key", 7.0))["seconds"] == pytest.approx(57, abs=1)
    store.begin(stage, "key", {}, "r")
    assert store.record(store.finish(stage, "key", 7.0))["seconds"] == 7.0, "a stage made again is another one"


def test_a_changed_artefact_is_refused_until_it_is_made_again(made: Any) -> None:
    before = statuses()
    data = next(ROOT.glob("scored-*/data.jsonl"))
    data.write_text(data.read_text().replace("score", "score ", 1))
    for options in ((), ("--dry-run",)):
        ran = made(STAGES, *options)
        assert ran.code == 2
        assert "stage 'scored': its data was changed" in ran.err
        assert "--from scored" in ran.err
    assert statuses() == before, "refused before anything ran"
    assert made(STAGES, "--from", "scored").code == 0
    assert statuses() == {"prefs": "cached", "reward": "cached", "scored": "done"}
    assert len(list((ROOT / "replaced").iterdir())) == 1, "what was made before is set aside"


@pytest.mark.slow
def test_a_lost_artefact_is_made_again(made: Any) -> None:
    shutil.rmtree(next(ROOT.glob("reward-*/final")))
    ran = made(STAGES)
    assert ran.code == 0
    assert "its model is gone" in ran.err
    assert statuses() == {"prefs": "cached", "reward": "done", "scored": "cached"}


def test_only_runs_one_stage_if_its_inputs_are_there(made: Any) -> None:
    assert made(STAGES, "--only", "reward").code == 0
    assert statuses() == {"prefs": "cached", "reward": "cached", "scored": "left out"}
    ran = made(with_steps(3), "--only", "scored")
    assert ran.code == 2
    assert "needs what stage 'reward' makes" in ran.err
    assert "--only reward" in ran.err
    rows = json.loads(made(STAGES, "--dry-run", "--json", "--from", "reward").out)
    assert [row["what"].split(",")[0] for row in rows] == ["cached", "made again", "runs after reward"]


@pytest.mark.slow
def test_a_stage_that_fails_is_named_and_the_others_are_kept(made: Any) -> None:
    broken = {"kind": "train", "algo": "sft", "dataset": "broken.jsonl", "trainer": {"max_steps": 1}}
    Path("broken.jsonl").write_text('{"prompt": "a", "completion": ""}\n' * 3)
    ran = made({**STAGES, "sft": {**broken, "after": "reward"}})
    assert ran.code == 2
    assert "stage 'sft'" in ran.err
    made({"bad": {"kind": "score", "reward": "verifier", "input": "answers.jsonl"}, **STAGES})
    assert statuses()["bad"] == "failed"
    assert statuses()["prefs"] == "waiting"
    ran = made(STAGES)
    assert ran.code == 0
    assert set(statuses().values()) == {"cached"}


@pytest.mark.slow
def test_an_interrupted_training_goes_on_with_its_own_run(
    made: Any, start_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def interrupted(words: list[str], log: Path, printed: Path | None) -> int:
        started.append(list(words))
        if "--resume" in words:
            return start_here(words, log, printed)
        start_here(words, log, printed)
        folder = Path(words[-1])
        shutil.rmtree(folder / "final")  # as if it had ended between its checkpoint and its final model
        (folder / "summary.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("rlhf_plugin_recipes.process.run_in_process", interrupted)
    ran = made(with_steps(2), "--only", "reward")
    assert ran.code == 130
    assert "the same command goes on" in ran.err
    assert statuses()["reward"] == "interrupted"
    assert made(with_steps(2), "--only", "reward").code == 0
    assert statuses()["reward"] == "done"
    assert [words[:2] for words in started] == [["train", "--config"], ["train", "--resume"]]


def test_two_recipes_do_not_work_in_one_folder(made: Any) -> None:
    from rlhf_plugin_recipes.process import locked

    with locked(ROOT):
        ran = made(STAGES)
    assert ran.code == 2
    assert "another process is at work" in ran.err
