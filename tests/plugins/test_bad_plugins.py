"""Plugins that are broken, too new, ambiguous or misbehaving, and what the user is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Fakes

LOSS = """
from typing import ClassVar
from rlhf_core.config import ComponentConfig

class Config(ComponentConfig):
    name: str = "twin"
    consumes: ClassVar[str | None] = "token_advantages"
    def build(self, ctx):
        return lambda batch: None
"""
HOOKS = """
from rlhf_core.hooks import hookimpl

class Hooks:
    @hookimpl
    def rlhf_step_end(self, event):
        raise RuntimeError("no disk in this hook")

hooks = Hooks()
"""
WRAPPER = HOOKS.replace("@hookimpl", "@hookimpl(wrapper=True)").replace("raise Run", "yield\n        raise Run")
MISSPELLED = HOOKS.replace("rlhf_step_end", "rlhf_step_ends")
TRAIN = ("train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic")
SHORT = (
    "--set",
    "trainer.steps=2",
    "--set",
    "trainer.rollout_batch_size=16",
    "--set",
    "trainer.eval_samples=0",
    "--run-dir",
    "run",
)


CLASH = """
from rlhf_core.config import ComponentConfig

class Config(ComponentConfig):
    name: str = "graded"
    difficulty: int = 3
    def build(self, ctx):
        return None
"""


def test_a_dataset_whose_setting_the_dataset_section_has_too(fakes: Fakes) -> None:
    fakes.add("graded-data", "[rlhf.dataset]\ngraded = graded_data:Config\n", CLASH)
    out = fakes.rlhf("train", "--algo", "grpo", "--reward", "verifier", "--dataset", "graded", "--dry-run")
    assert out.returncode == 2
    assert all(text in out.stderr for text in ("dataset 'graded' has settings called difficulty", "graded-data"))


def test_a_plugin_that_does_not_import_fails_only_when_selected(fakes: Fakes) -> None:
    fakes.add(
        "sick-loss", "[rlhf.loss]\nsick = sick_loss:Config\n", 'raise OSError("libsick.so is not there")', version="3.1"
    )
    assert "sick-loss" in fakes.rlhf("plugins", "list").stdout
    assert fakes.rlhf(*TRAIN, "--dry-run").returncode == 0
    out = fakes.rlhf(*TRAIN, "--loss", "sick", "--dry-run")
    assert out.returncode == 2
    assert all(text in out.stderr for text in ("sick-loss 3.1", "OSError", "libsick.so is not there")), out.stderr
    assert "Traceback" not in out.stderr
    out = fakes.rlhf("plugins", "check", "sick-loss")
    assert out.returncode == 1
    assert "Traceback" in out.stdout


def test_a_plugin_for_another_core_is_refused_before_it_is_imported(fakes: Fakes) -> None:
    code = 'open("imported", "w")\n' + LOSS
    fakes.add("future-loss", "[rlhf.loss]\nfuture = future_loss:Config\n", code, requires="rlhf-core>=9,<10")
    out = fakes.rlhf(*TRAIN, "--loss", "future", "--dry-run")
    assert out.returncode == 2
    assert "needs rlhf-core<10,>=9" in out.stderr
    assert "future-loss 1.0" in out.stderr
    assert not (fakes.folder / "imported").exists()


def test_two_claims_to_a_name_are_an_error_only_when_it_is_used(fakes: Fakes) -> None:
    for name in ("twin-a", "twin-b"):
        fakes.add(name, f"[rlhf.loss]\ntwin = {name.replace('-', '_')}:Config\n", LOSS)
    assert fakes.rlhf(*TRAIN, "--dry-run").returncode == 0
    out = fakes.rlhf(*TRAIN, "--loss", "twin", "--dry-run")
    assert out.returncode == 2
    assert "twin-a/twin" in out.stderr
    assert "twin-b/twin" in out.stderr


@pytest.mark.parametrize("name", ["twin-a", "twin-b"])
def test_the_qualified_name_selects_its_own_distribution(fakes: Fakes, name: str) -> None:
    for each in ("twin-a", "twin-b"):
        fakes.add(each, f"[rlhf.loss]\ntwin = {each.replace('-', '_')}:Config\n", LOSS)
    out = fakes.rlhf(*TRAIN, "--loss", f"{name}/twin", "--dry-run", "--json")
    assert out.returncode == 0, out.stderr
    chosen = next(c for c in json.loads(out.stdout)["components"] if c["kind"] == "loss")
    assert chosen["distribution"] == name


def test_a_disabled_distribution_is_as_if_it_were_not_there(fakes: Fakes) -> None:
    for each in ("twin-a", "twin-b"):
        fakes.add(each, f"[rlhf.loss]\ntwin = {each.replace('-', '_')}:Config\n", LOSS)
    assert fakes.rlhf("plugins", "disable", "twin-a").returncode == 0
    out = fakes.rlhf(*TRAIN, "--loss", "twin", "--dry-run")
    assert out.returncode == 0, out.stderr
    assert fakes.rlhf(*TRAIN, "--loss", "twin-a/twin", "--dry-run").returncode == 2


def test_unknown_name_gets_the_nearest(fakes: Fakes) -> None:
    out = fakes.rlhf(*TRAIN, "--loss", "grpo_clap", "--dry-run")
    assert out.returncode == 2
    assert "did you mean 'grpo_clip'" in out.stderr


VERIFIER = LOSS.replace("ComponentConfig", "VerifierConfig").replace("rlhf_core.config", "rlhf_core.plugins.component")


def test_a_verifier_as_reward_gets_the_words_that_work(fakes: Fakes) -> None:
    fakes.add("acme-proof", "[rlhf.verifier]\nproof = acme_proof:Config\n", VERIFIER.replace('"twin"', '"proof"'))
    for name in ("proof", "acme-proof/proof"):
        out = fakes.rlhf("train", "--algo", "grpo", "--reward", name, "--dataset", "pocket/arithmetic", "--dry-run")
        assert out.returncode == 2
        said = f"--reward verifier --set reward.verifier={name}"
        assert said in out.stderr
        words = said.split()
        out = fakes.rlhf("train", "--algo", "grpo", *words, "--dataset", "pocket/arithmetic", "--dry-run")
        assert "unknown" not in out.stderr
    out = fakes.rlhf(*TRAIN, "--loss", "grpo", "--dry-run")
    assert "'grpo' is the name of a component of kind trainer" in out.stderr
    out = fakes.rlhf(*TRAIN, "--loss", "ensemble", "--dry-run")
    assert "fix: choose one of kind loss; rlhf plugins list --kind loss" in out.stderr


@pytest.mark.slow
def test_a_raising_hook_is_counted_and_a_misspelled_one_is_warned_of(
    fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    fakes.add("bad-hook", "[rlhf]\nobserver = bad_hook:hooks\n", HOOKS)
    fakes.add("typo-hook", "[rlhf]\nobserver = typo_hook:hooks\n", MISSPELLED)
    out = fakes.rlhf(*TRAIN, *SHORT)
    assert out.returncode == 0, out.stderr
    said = out.stderr + caplog.text
    summary = json.loads((fakes.folder / "run" / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["hook_errors"] == {"bad-hook/observer:rlhf_step_end": 2, "typo-hook/observer:import": 1}
    assert "plugin 'bad-hook/observer' (bad-hook 1.0) raised" in said
    assert said.count("later ones are only counted") == 1
    assert "typo-hook/observer" in said
    assert "rlhf_step_ends" in said


def test_a_dry_run_whose_check_breaks_does_not_say_that_all_is_well(fakes: Fakes) -> None:
    code = HOOKS.replace("rlhf_step_end", "rlhf_preflight")
    fakes.add("bad-hook", "[rlhf]\nobserver = bad_hook:hooks\n", code)
    out = fakes.rlhf(*TRAIN, "--dry-run")
    assert out.returncode == 2
    assert "bad-hook/observer" in out.stderr
    assert "in order" not in out.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("code", "said"), [(HOOKS, "no disk in this hook"), (MISSPELLED, "rlhf_step_ends")])
def test_strict_plugins_fails_the_run(fakes: Fakes, code: str, said: str) -> None:
    fakes.add("bad-hook", "[rlhf]\nobserver = bad_hook:hooks\n", code)
    out = fakes.rlhf(*TRAIN, *SHORT, "--strict-plugins")
    assert out.returncode == 2
    assert said in out.stderr
    assert "bad-hook/observer" in out.stderr
    assert not (fakes.folder / "run" / "summary.json").exists()


def test_a_hook_plugin_for_another_core_is_left_out_with_a_warning(
    fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    code = 'open("imported", "w")\n' + HOOKS
    fakes.add("future-hook", "[rlhf]\nobserver = future_hook:hooks\n", code, requires="rlhf-core>=9")
    out = fakes.rlhf(*TRAIN, "--dry-run")
    assert out.returncode == 0, out.stderr
    assert "needs rlhf-core>=9" in out.stderr + caplog.text
    assert not (fakes.folder / "imported").exists()


def test_no_plugins_and_disabled_hooks_are_not_imported(fakes: Fakes, tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'imported')!r}, 'w')\n" + HOOKS
    fakes.add("loud-hook", "[rlhf]\nobserver = loud_hook:hooks\n", code)
    fakes.rlhf("plugins", "disable", "loud_hook")
    assert fakes.rlhf(*TRAIN, "--dry-run").returncode == 0
    assert not (tmp_path / "imported").exists()


def test_check_imports_what_a_config_imports_only_when_it_builds(fakes: Fakes) -> None:
    fakes.add("lazy-loss", "[rlhf.loss]\nlazy = lazy_loss.config:Config\n")
    (fakes.folder / "lazy_loss.py").unlink()
    package = fakes.folder / "lazy_loss"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "config.py").write_text(LOSS)
    (package / "loss.py").write_text("import no_such_library")
    for command in (("plugins", "check", "lazy-loss"), ("doctor",)):
        out = fakes.rlhf(*command)
        assert out.returncode == 1, out.stdout
        assert "importing lazy_loss.loss: ModuleNotFoundError" in out.stdout


@pytest.mark.parametrize(("code", "said"), [(MISSPELLED, "rlhf_step_ends"), (WRAPPER, "do not wrap")])
def test_check_looks_at_the_hooks_of_the_distribution_asked_for(fakes: Fakes, code: str, said: str) -> None:
    fakes.add("bad-hook", "[rlhf]\nobserver = bad_hook:hooks\n", code)
    fakes.add("good-hook", "[rlhf]\nobserver = good_hook:hooks\n", HOOKS)
    assert fakes.rlhf("plugins", "check", "good-hook").returncode == 0
    out = fakes.rlhf("plugins", "check", "bad_hook")
    assert out.returncode == 1
    assert said in out.stdout
    out = fakes.rlhf("plugins", "check", "bad-hoks")
    assert out.returncode == 2
    assert "bad-hook" in out.stderr


REGISTERS = """
from rlhf_core.hooks import hookimpl

class Hooks:
    @hookimpl
    def rlhf_register(self, registry):
        registry.add("{kind}", "late", "late_{kind}:Config", distribution="late-{kind}")

hooks = Hooks()
"""


def test_a_hook_registers_a_component_that_metadata_does_not_declare(fakes: Fakes) -> None:
    code = REGISTERS.format(kind="loss") + LOSS.replace('"twin"', '"late"')
    fakes.add("late-loss", "[rlhf]\nfinder = late_loss:hooks\n", code)
    out = fakes.rlhf(*TRAIN, "--loss", "late", "--dry-run", "--json")
    assert out.returncode == 0, out.stderr
    chosen = next(c for c in json.loads(out.stdout)["components"] if c["kind"] == "loss")
    assert chosen["distribution"] == "late-loss"
    out = fakes.rlhf(*TRAIN, "--loss", "late", "--dry-run", RLHF_DISABLE_PLUGINS="late-loss")
    assert out.returncode == 2
    assert "unknown loss 'late'" in out.stderr


LATE_REWARD = (
    REGISTERS.format(kind="reward")
    + """
from rlhf_core.config import ComponentConfig
from rlhf_core.rewards import Score

class Config(ComponentConfig):
    name: str = "late"
    def build(self, ctx):
        return self
    def score(self, samples):
        return [Score(len(s.completion) * 1.0) for s in samples]
"""
)


def test_scoring_knows_a_reward_that_a_hook_registers(fakes: Fakes) -> None:
    fakes.add("late-reward", "[rlhf]\nfinder = late_reward:hooks\n", LATE_REWARD)
    (fakes.folder / "rows.jsonl").write_text(json.dumps({"prompt": "?", "completion": "four"}) + "\n")
    out = fakes.rlhf("reward", "score", "--reward", "late", "--input", "rows.jsonl", "--output", "scored.jsonl")
    assert out.returncode == 0, out.stderr
    assert json.loads((fakes.folder / "scored.jsonl").read_text())["score"] == 4.0


def test_a_launcher_that_raises_starts_nothing(fakes: Fakes) -> None:
    code = HOOKS.replace("rlhf_step_end", "rlhf_launch")
    fakes.add("bad-launcher", "[rlhf]\nlauncher = bad_launcher:hooks\n", code)
    out = fakes.rlhf(*TRAIN, *SHORT, "--nproc", "2")
    assert out.returncode == 1, out.stderr
    assert (
        "rlhf_launch of plugin 'bad-launcher/launcher' (bad-launcher 1.0) raised RuntimeError: no disk in this hook"
        in out.stderr
    )
    assert "rlhf plugins disable bad-launcher" in out.stderr
    assert not (fakes.folder / "run" / "metrics.jsonl").exists()


def test_enabling_says_when_the_environment_still_disables(fakes: Fakes) -> None:
    out = fakes.rlhf("plugins", "enable", "some-thing", RLHF_DISABLE_PLUGINS="Some_Thing")
    assert "still disabled by $RLHF_DISABLE_PLUGINS" in out.stdout
    fakes.rlhf("plugins", "disable", "other", RLHF_DISABLE_PLUGINS="some-thing")
    assert json.loads((fakes.folder / "home" / "plugins.json").read_text()) == {"disabled": ["other"]}
