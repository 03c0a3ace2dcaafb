"""`rlhf config`: what it shows can be run, what it validates is what training would accept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Rlhf = Callable[..., Any]
ROOT = Path(__file__).parents[2]


def test_show_is_a_config_file_of_the_same_run(rlhf: Rlhf, tmp_path: Path) -> None:
    options = (
        "--algo",
        "grpo",
        "--reward",
        "verifier",
        "--dataset",
        "pocket/arithmetic",
        "--set",
        "trainer.steps=7",
        "--seed",
        3,
    )
    shown = rlhf("config", "show", *options)
    data = yaml.safe_load(shown.out)
    assert (data["trainer"]["steps"], data["seed"], data["reward"]["name"]) == (7, 3, "verifier")
    (tmp_path / "my.yaml").write_text(shown.out)
    assert yaml.safe_load(rlhf("config", "show", "--config", tmp_path / "my.yaml").out) == data
    assert json.loads(rlhf("config", "show", *options, "--json").out) == data
    plan = json.loads(rlhf("train", *options, "--dry-run", "--json").out)
    assert data["trainer"].pop("precision") == "auto", "a file is for any machine"
    assert plan["config"]["trainer"].pop("precision") in ("fp32", "bf16"), "a plan is for this one"
    assert plan["config"] == data


def test_changing_one_setting_of_a_section_keeps_the_rest_of_the_recipe(rlhf: Rlhf) -> None:
    before, after = (
        yaml.safe_load(rlhf("config", "show", "--algo", "sft", *options).out)["trainer"]["optimizer"]
        for options in ((), ("--set", "trainer.optimizer.learning_rate=5e-3"))
    )
    assert (before["schedule"], before["warmup_steps"]) == ("cosine", 10)
    assert after == {**before, "learning_rate": 5e-3}


def test_show_leaves_out_what_follows_from_another_setting(rlhf: Rlhf, tmp_path: Path) -> None:
    shown = rlhf(
        "config",
        "show",
        "--algo",
        "grpo",
        "--reward",
        "verifier",
        "--dataset",
        "pocket/arithmetic",
        "--set",
        "trainer.gradient_accumulation_steps=4",
    )
    (tmp_path / "my.yaml").write_text(shown.out)
    assert rlhf("config", "show", "--config", tmp_path / "my.yaml").out == shown.out


def test_show_wants_an_algorithm(rlhf: Rlhf) -> None:
    out = rlhf("config", "show")
    assert out.code == 2
    assert "--algo NAME, one of: " in out.err
    assert " grpo," in out.err


def test_validate(rlhf: Rlhf, tmp_path: Path) -> None:
    good, bad = ROOT / "configs" / "pocket_grpo.yaml", tmp_path / "bad.yaml"
    assert rlhf("config", "validate", good).code == 0
    bad.write_text("trainer: {name: grpo, stepz: 3}\nreward: verifier\n")
    out = rlhf("config", "validate", good, bad, tmp_path / "none.yaml")
    assert out.code == 2
    assert "unknown key 'trainer.stepz'" in out.err
    assert "did you mean 'trainer.steps'?" in out.err
    assert "none.yaml' does not exist" in out.err
    rows = json.loads(rlhf("config", "validate", good, bad, "--json").out)
    assert [r["ok"] for r in rows] == [True, False]
    bad.write_text("trainer: {name: sft}\nloss: grpo_clip\n")
    assert "loss 'grpo_clip' consumes" in rlhf("config", "validate", bad).err


@pytest.mark.parametrize("text", ["a: [1\n", "- 1\n", "trainer: 3\n", "reward: {weight: 1}\ntrainer: grpo\n"])
def test_validate_names_the_file_that_is_no_config(rlhf: Rlhf, tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.yaml").write_text(text)
    out = rlhf("config", "validate", tmp_path / "odd.yaml")
    assert out.code == 2
    assert "odd.yaml" in out.err
    assert "Traceback" not in out.err


def test_schema(rlhf: Rlhf) -> None:
    run = json.loads(rlhf("config", "schema").out)
    assert run["properties"]["seed"]["description"]
    loss = json.loads(rlhf("config", "schema", "--kind", "loss", "--name", "grpo_clip").out)
    assert loss["properties"]["name"]["default"] == "grpo_clip"
    losses = json.loads(rlhf("config", "schema", "--kind", "loss").out)
    assert losses["rlhf-plugin-grpo/grpo_clip"] == loss


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--kind", "loss", "--name", "grpo_clap"), "did you mean 'grpo_clip'"),
        (("--name", "grpo"), "needs a --kind"),
        (("--kind", "los"), "los"),
    ],
)
def test_schema_of_what_does_not_exist(rlhf: Rlhf, args: tuple[str, ...], message: str) -> None:
    out = rlhf("config", "schema", *args)
    assert out.code == 2
    assert message in out.err


def test_a_recipe_may_depend_on_the_reward(rlhf: Rlhf) -> None:
    def coefficient(*options: object) -> float:
        return yaml.safe_load(rlhf("config", "show", *options).out)["trainer"]["kl"]["coefficient"]

    assert coefficient("--algo", "grpo") == coefficient("--algo", "dapo", "--reward", "ensemble") == 0.15
    assert coefficient("--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic") == 0.05
    assert coefficient("--algo", "grpo", "--set", "trainer.kl.coefficient=0.3") == 0.3
    assert coefficient("--algo", "reinforce_pp") == 0.01, "a loss's own recipe comes first"
