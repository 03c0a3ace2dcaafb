"""What does not work in one place is said there, once, and marks nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Fakes
from .test_bad_plugins import HOOKS, SHORT, TRAIN

COMMAND = """
import click

@click.command()
def weigh():
    "Weigh it."
    click.echo("weighed")

@click.group()
def lab():
    "A plain group."

@lab.command()
def clean():
    click.echo("cleaned")
"""


def test_any_group_takes_commands(fakes: Fakes) -> None:
    fakes.add("acme-lab", "[rlhf.command]\nlab = acme_lab:lab\n", COMMAND)
    fakes.add("acme-scales", "[rlhf.command]\nlab.weigh = acme_scales:weigh\nruns.weigh = acme_scales:weigh\n", COMMAND)
    for words in ("lab weigh", "runs weigh"):
        out = fakes.rlhf(*words.split())
        assert (out.returncode, out.stdout) == (0, "weighed\n"), out.stderr
    assert fakes.rlhf("lab", "clean").stdout == "cleaned\n"
    said = fakes.rlhf("runs", "--help").stdout
    assert "(acme-scales)" in said
    assert "compare" in said


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("train.weigh", "`rlhf train` takes no commands of plugins"),
        ("plugins.list", "`rlhf plugins list` is there already"),
        ("weigh.more", "`rlhf weigh` takes no commands of plugins"),
    ],
)
def test_a_command_that_no_group_takes_is_reported(fakes: Fakes, path: str, why: str) -> None:
    fakes.add("acme-scales", f"[rlhf.command]\nweigh = acme_scales:weigh\n{path} = acme_scales:weigh\n", COMMAND)
    assert f"{path} " in fakes.rlhf("plugins", "list", "--kind", "command").stdout
    out = fakes.rlhf("plugins", "check", "acme-scales")
    assert out.returncode == 1
    assert why in out.stdout
    assert "acme-scales 1.0" in out.stdout
    assert "ok      command    acme-scales/weigh\n" in out.stdout


def test_who_types_a_lost_command_is_told(fakes: Fakes) -> None:
    fakes.add("acme-scales", "[rlhf.command]\ntrain.weigh = acme_scales:weigh\n", COMMAND)
    out = fakes.rlhf("train", "weigh")
    assert out.returncode == 2
    assert "acme-scales 1.0" in out.stderr
    assert "`rlhf train` takes no commands of plugins" in out.stderr


CONFIG = """
from typing import ClassVar
from rlhf_core.config import ComponentConfig

class SoundConfig(ComponentConfig):
    name: str = "sound"
    consumes: ClassVar[str | None] = "token_advantages"
    component: ClassVar[str] = "acme_two.sound:make"

class SickConfig(SoundConfig):
    name: str = "sick"
    component: ClassVar[str] = "acme_two.sick:make"

class LateConfig(SoundConfig):
    name: str = "late"
    def build(self, ctx):
        from .late import make
        return make(self)
"""


def two(fakes: Fakes) -> Path:
    entries = "".join(f"{name} = acme_two.config:{name.title()}Config\n" for name in ("sound", "sick", "late"))
    fakes.add("acme-two", f"[rlhf.loss]\n{entries}")
    (fakes.folder / "acme_two.py").unlink()
    package = fakes.folder / "acme_two"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "config.py").write_text(CONFIG)
    for name in ("sound", "late"):
        (package / f"{name}.py").write_text("def make(config):\n    return lambda batch: None\n")
    (package / "sick.py").write_text("import no_such_library\n")
    return package


def test_one_broken_module_marks_one_component(fakes: Fakes) -> None:
    two(fakes)
    out = fakes.rlhf("plugins", "check", "acme-two")
    assert out.returncode == 1
    assert out.stdout.count("broken ") == 1
    assert "broken  loss       acme-two/sick" in out.stdout
    assert "no_such_library" in out.stdout
    for name in ("sound", "late"):
        assert f"ok      loss       acme-two/{name}" in out.stdout
        assert fakes.rlhf(*TRAIN, "--loss", name, "--dry-run").returncode == 0
    assert fakes.rlhf("plugins", "list", "--kind", "loss").stdout.count("acme-two") == 3


@pytest.mark.parametrize("module", ["extra", "late"])
def test_a_broken_module_that_no_config_names_is_a_row_of_its_own(fakes: Fakes, module: str) -> None:
    package = two(fakes)
    (package / "sick.py").write_text((package / "late.py").read_text())
    (package / f"{module}.py").write_text("import no_such_library\n")
    out = fakes.rlhf("plugins", "check", "acme-two")
    assert out.returncode == 1
    assert out.stdout.count("broken ") == 1
    assert f"broken  module     acme_two.{module}" in out.stdout


def test_two_claims_are_a_note_and_break_nothing(fakes: Fakes) -> None:
    package = two(fakes)
    (package / "sick.py").write_text((package / "late.py").read_text())
    fakes.add("acme-one", "[rlhf.loss]\nsound = acme_one:SoundConfig\n", CONFIG)
    out = fakes.rlhf("plugins", "check", "acme-two")
    assert out.returncode == 0, out.stdout
    assert "write acme-one/sound or acme-two/sound" in out.stdout


@pytest.mark.slow
def test_a_failing_hook_is_reported_once_by_all_ranks_together(fakes: Fakes) -> None:
    fakes.add("bad-hook", "[rlhf]\nobserver = bad_hook:hooks\n", HOOKS, version="1.2")
    other = HOOKS.replace("raise Run", "import os\n        if os.environ['RANK'] == '1': raise Run")
    fakes.add("one-hook", "[rlhf]\nobserver = one_hook:hooks\n", other, version="3.4")
    fakes.add("no-hook", "[rlhf]\nobserver = no_hook:hooks\n", "import no_such_library")
    out = fakes.process(*TRAIN, *SHORT, "--nproc", "2")
    assert out.returncode == 0, out.stderr
    assert out.stderr.count("rlhf_step_end of plugin 'bad-hook/observer' (bad-hook 1.2) raised") == 1
    assert out.stderr.count("rank 1: hook rlhf_step_end of plugin 'one-hook/observer' (one-hook 3.4) raised") == 1
    assert out.stderr.count("'no-hook/observer' (no-hook 1.0) cannot be loaded") == 1
    counted = json.loads((fakes.folder / "run" / "summary.json").read_text())["hook_errors"]
    assert counted["bad-hook/observer:rlhf_step_end"] == 4
    assert counted["one-hook/observer:rlhf_step_end"] == 2
    assert counted["no-hook/observer:import"] == 2


def test_check_looks_at_a_distribution_that_gives_hints_only(fakes: Fakes) -> None:
    fakes.add("good-hints", "[rlhf.key_hints]\nours = good_hints:hint\n", "def hint(*given): return ''")
    fakes.add("bad-hints", "[rlhf.key_hints]\nours = bad_hints:hint\n", "raise OSError('no table')")
    out = fakes.rlhf("plugins", "check", "good-hints")
    assert (out.returncode, out.stdout) == (0, "ok      key_hints  good-hints/ours\n")
    out = fakes.rlhf("plugins", "check", "bad-hints")
    assert out.returncode == 1
    assert "no table" in out.stdout
