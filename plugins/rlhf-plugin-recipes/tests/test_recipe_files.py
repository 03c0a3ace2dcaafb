"""Recipes that cannot work are refused before anything is written, and shipped ones can."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_recipes.files import shipped
from rlhf_plugin_recipes.read import read_recipe

PAIRS = {"kind": "pairs", "gold": True, "count": 2}
TRAIN = {"kind": "train", "algo": "reward_model"}


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ({"a": {**PAIRS, "model": "${stages.b.model}"}, "b": {**TRAIN, "dataset": "${stages.a.data}"}}, "a -> b -> a"),
        ({"a": {**TRAIN, "after": "prefz"}, "prefs": PAIRS}, "did you mean 'prefs'?"),
        ({"a": {**TRAIN, "dataset": "${stages.prefz.data}"}, "prefs": PAIRS}, "there is no stage 'prefz'"),
        ({"a": {**TRAIN, "dataset": "${stages.prefs.date}"}, "prefs": PAIRS}, "did you mean 'data'?"),
        ({"a": {**TRAIN, "dataset": "${prefs.data}"}}, "'${prefs.data}' means nothing"),
        ({"a": {**PAIRS, "count": "${vars.cout}"}}, "'${vars.cout}' is not defined"),
        ({"a": {"kind": "grpo"}}, "`kind: train` with `algo: grpo`"),
        ({"a": {"algo": "grpo"}}, "stage 'a' has no kind"),
        ({"a": {**TRAIN, "trainr": {"max_steps": 1}}}, "'trainer'"),
        ({"a": {**TRAIN, "trainer": {"max_step": 1}}}, "did you mean 'trainer.max_steps'?"),
        ({"a": {**PAIRS, "cout": 2}}, "did you mean 'count'"),
        ({"a": {**PAIRS, "count": "many"}}, "'many' is not a valid integer"),
        ({"a": {**PAIRS, "output": "x.jsonl"}}, "'output' is decided by the recipe"),
        ({"a": {"kind": "score", "reward": "verifer", "input": "x.jsonl"}}, "did you mean 'verifier'"),
        ({"a": {"kind": "score", "reward": "verifier", "input": "gone.jsonl"}}, "'gone.jsonl' does not exist"),
        ({"a": {"kind": "command", "run": "reward wiegh"}}, "there is no command `rlhf reward wiegh`"),
        ({"a": {**PAIRS, "model": "./gone"}}, "'./gone' does not exist"),
        ("stages:\n  a: {kind: pairs}\n  a: {kind: train}\n", "'a' is given twice"),
        ("stages:\n  a: {kind: pairs, model: ${vars.x}}\n", "needs quotes"),
        ("stages:\n  no: {kind: pairs}\n", "quotes around it"),
        ("stages: &a\n  b: {kind: pairs}\n  c: *a\n", "holds itself"),
        ("stages:\n\ta: {kind: pairs}\n", "cannot start any token"),
        ("stagez: {}\n", "did you mean 'stages'?"),
        ("stages: []\n", "a recipe needs stages"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_written(recipe: Any, stages: Any, said: str) -> None:
    ran = recipe(stages)
    assert ran.code == 2, ran.err
    assert said in ran.err
    assert [path.name for path in Path().iterdir()] == ["r.yaml"]


def test_a_later_stage_is_checked_before_the_first_begins(recipe: Any) -> None:
    reward = {"name": "bradley_terry", "path": "${stages.rm.model}", "max_lenght": 9}
    last = {"kind": "train", "algo": "grpo", "model": "${stages.rm.model}", "reward": reward}
    ran = recipe({"rm": {**TRAIN, "trainer": {"max_steps": 1}}, "policy": last})
    assert ran.code == 2, ran.err
    assert "stage 'policy'" in ran.err
    assert "max_length" in ran.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("setting", "said"), [("vars.step=4", "did you mean 'steps'?"), ("vars.idle=4", "vars: steps")]
)
def test_a_variable_that_no_stage_uses_is_not_set(recipe: Any, setting: str, said: str) -> None:
    sft = {"kind": "train", "algo": "sft", "trainer": {"max_steps": "${vars.steps}"}}
    ran = recipe({"a": sft}, "--set", setting, "--dry-run", vars={"steps": 3, "idle": 1})
    assert ran.code == 2, ran.err
    assert "no stage uses" in ran.err
    assert said in ran.err


@pytest.mark.parametrize(("option", "name"), [("--from", "prefz"), ("--only", "prefz")])
def test_a_stage_that_is_not_there_cannot_be_chosen(recipe: Any, option: str, name: str) -> None:
    ran = recipe({"prefs": PAIRS}, option, name)
    assert ran.code == 2
    assert "did you mean 'prefs'?" in ran.err


def test_stages_run_after_what_they_use_whatever_their_order(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("""
vars: {n: 3}
stages:
  last: {kind: train, algo: sft, model: "${stages.middle.model}", trainer: {max_steps: "${vars.n}"}}
  middle: {kind: train, algo: sft, after: first}
  first: {kind: pairs, count: "${vars.n}", model: "pre-${vars.n}"}
""")
    read = read_recipe(file, ["vars.n=4"])
    assert [stage.name for stage in read.stages] == ["first", "middle", "last"]
    assert read.stage("last").settings["trainer"] == {"max_steps": 4}
    assert read.stage("first").settings["model"] == "pre-4"
    assert read.after("middle") == {"middle", "last"}
    assert read.before("last") == {"middle", "first"}


@pytest.mark.slow
def test_shipped_recipes_are_listed_shown_and_valid(rlhf: Any) -> None:
    rows = json.loads(rlhf("recipe", "list", "--json").out)
    assert {row["name"] for row in rows} == set(shipped())
    assert all(row["about"] for row in rows)
    assert "three_stage" in shipped()
    assert "stages:" in rlhf("recipe", "show", "three_stage").out
    for name in shipped():
        ran = rlhf("recipe", "run", name, "--dry-run", "--json")
        assert ran.code == 0, ran.err
        assert {row["what"].split(" ")[0] for row in json.loads(ran.out)} == {"made", "runs"}
    assert not Path("runs").exists()
    ran = rlhf("recipe", "run", "three_stages")
    assert ran.code == 2
    assert "did you mean 'three_stage'?" in ran.err


@pytest.mark.slow
def test_the_examples_of_the_documentation_are_valid(rlhf: Any) -> None:
    page = Path(__file__).parents[3] / "docs" / "recipes.md"
    (example,) = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    Path("mine.yaml").write_text(example)
    ran = rlhf("recipe", "run", "mine.yaml", "--set", "vars.steps=30", "--dry-run", "--json")
    assert ran.code == 0, ran.err
    assert [row["stage"] for row in json.loads(ran.out)] == ["sft", "reward", "policy", "eval"]
