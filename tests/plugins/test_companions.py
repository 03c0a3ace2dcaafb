"""What an algorithm brings along is its own distribution's, whoever else claims the name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlhf_core.config.plan import Plan, reload
from rlhf_core.plugins.registry import Registry

from .conftest import Fakes, call, environment, install

CLAIMS = """
from typing import ClassVar
from rlhf_core.config import ComponentConfig

class Config(ComponentConfig):
    name: str = "grpo_clip"
    consumes: ClassVar[str | None] = "token_advantages"
    def build(self, ctx):
        raise RuntimeError("another's component was taken")

class Group(Config):
    name: str = "group_norm"

class Native(Config):
    name: str = "native"

class Numeric(Config):
    name: str = "numeric"

class Pocket(Config):
    name: str = "pocket"
"""
ENTRIES = """
[rlhf.loss]
grpo_clip = other_names:Config
[rlhf.advantage]
group_norm = other_names:Group
[rlhf.rollout]
native = other_names:Native
[rlhf.verifier]
numeric = other_names:Numeric
[rlhf.dataset]
pocket = other_names:Pocket
"""
TRAIN = ("train", "--algo", "grpo", "--reward", "programmatic")
SMALL = (
    "--set=trainer.steps=1",
    "--set=trainer.rollout_batch_size=8",
    "--set=trainer.eval_samples=0",
    "--set=trainer.sampling.max_tokens=4",
)
DATA = "--set=dataset.name=rlhf-plugin-pocket/pocket", "--set=dataset.subset=arithmetic"


def components(out: str) -> dict[tuple[str, str], str]:
    return {(c["kind"], c["name"]): c["distribution"] for c in json.loads(out)["components"]}


def test_claimed_names_do_not_break_an_algorithm(fakes: Fakes) -> None:
    fakes.add("other-names", ENTRIES, CLAIMS)
    out = fakes.rlhf(*TRAIN, "--dry-run", "--json")
    assert out.returncode == 0, out.stderr
    chosen = components(out.stdout)
    assert chosen["loss", "grpo_clip"] == chosen["advantage", "group_norm"] == "rlhf-plugin-grpo"
    assert chosen["rollout", "native"] == "rlhf-plugin-native"
    assert chosen["dataset", "pocket"] == "rlhf-plugin-pocket"
    out = fakes.rlhf("train", "--algo", "grpo", "--reward", "verifier", *DATA, "--dry-run", "--json")
    assert components(out.stdout)["verifier", "numeric"] == "rlhf-plugin-verifiers", out.stderr


def test_the_user_still_has_to_say_which_one(fakes: Fakes) -> None:
    fakes.add("other-names", ENTRIES, CLAIMS)
    out = fakes.rlhf(*TRAIN, "--loss", "grpo_clip", "--dry-run", "--json")
    assert out.returncode == 2
    assert "other-names/grpo_clip or rlhf-plugin-grpo/grpo_clip" in out.stderr
    out = fakes.rlhf(*TRAIN, "--loss", "other-names/grpo_clip", "--dry-run", "--json")
    assert components(out.stdout)["loss", "grpo_clip"] == "other-names"


def test_a_dataset_is_chosen_by_its_qualified_name(fakes: Fakes) -> None:
    fakes.add("other-names", ENTRIES, CLAIMS)
    out = fakes.rlhf(*TRAIN, "--dataset", "other-names/pocket", "--dry-run", "--json")
    assert "build() of dataset 'other-names/pocket' (other-names 1.0) raised RuntimeError" in out.stderr


def test_a_run_goes_on_after_another_distribution_claims_its_names(fakes: Fakes) -> None:
    (fakes.folder / "plan.json").write_text(fakes.rlhf(*TRAIN, "--dry-run", "--json").stdout)
    plan = Plan.read(fakes.folder / "plan.json")
    assert plan.config["loss"]["name"] == "grpo_clip"
    fakes.add("other-names", ENTRIES, CLAIMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(fakes.folder))
        config = reload(Registry(disabled=()), plan)
    assert type(config.loss).__module__.startswith("rlhf_plugin_grpo")


def test_a_companion_may_be_of_a_distribution_that_is_required(fakes: Fakes) -> None:
    fakes.add("my-trainer", "[rlhf.loss]\nmine = my_trainer:Config\n", requires="rlhf-plugin-grpo>=0.1")
    fakes.add("other-names", ENTRIES, CLAIMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(fakes.folder))
        registry = Registry(disabled=())
        assert registry.near("loss", "grpo_clip", "my-trainer") == "rlhf-plugin-grpo/grpo_clip"
        assert registry.near("loss", "grpo_clip", "other-names") == "other-names/grpo_clip"
        assert registry.near("loss", "dr_grpo", "my-trainer") == "dr_grpo"


@pytest.mark.long  # the same with a distribution that is only described: above
@pytest.mark.slow
def test_with_another_distribution_really_installed(other_python: str, tmp_path: Path) -> None:
    folder = tmp_path / "other-names"
    folder.mkdir()
    (folder / "other_names.py").write_text(CLAIMS)
    tables = "".join(
        f'[project.entry-points."{line[1:-1]}"]\n' if line.startswith("[") else line.replace(" = ", ' = "') + '"\n'
        for line in ENTRIES.strip().splitlines()
    )
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "other-names"\nversion = "1.0"\ndependencies = ["rlhf-core"]\n'
        f'{tables}[tool.hatch.build.targets.wheel]\nonly-include = ["other_names.py"]\n'
    )
    install(other_python, folder)
    rlhf = [other_python, "-m", "rlhf_core.cli.main"]
    try:
        listed = call([*rlhf, "plugins", "list", "--kind", "loss"], env=environment(), cwd=tmp_path).stdout
        assert listed.count("grpo_clip ") == 2
        out = call([*rlhf, *TRAIN, *SMALL, "--run-dir", "run"], env=environment(), cwd=tmp_path)
        assert out.returncode == 0, out.stderr
        plan = (tmp_path / "run" / "plan.json").read_text()
        assert components(plan)["loss", "grpo_clip"] == "rlhf-plugin-grpo"
    finally:
        call(
            [sys.executable, "-m", "pip", "--python", other_python, "uninstall", "-q", "-y", "other-names"],
            env=environment(),
        )
