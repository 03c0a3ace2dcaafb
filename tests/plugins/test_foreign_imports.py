"""Code of installed distributions is imported in one place, which no exception of it leaves but Ctrl-C."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlhf_core.config import ConfigError, PluginError
from rlhf_core.plugins.component_calls import StageTimeout
from rlhf_core.plugins.entry_points import foreign_code, scan
from rlhf_core.plugins.hooks import HookBus, HookManager, RunEnd, hookimpl
from rlhf_core.runs.launch.run import _closed
from rlhf_core.runs.run_dir import RunDir

from .conftest import ROOT, Fakes

GROUPS = sorted({entry.point.group for entry in scan() if entry.point.group.startswith("rlhf")})
TRAIN = ("train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--dry-run")
COMMANDS = (
    TRAIN,
    (*TRAIN[:-1], "--set", "trainer.stepz=3"),
    ("config", "show", *TRAIN[1:-1]),
    ("plugins", "list"),
    ("plugins", "info", "grpo_clip"),
    ("plugins", "check"),
    ("doctor",),
    ("no-such-command",),
)
ENDINGS = (
    "sys.exit('that is all')",
    "raise BaseException('that is all')",
    "raise GeneratorExit",
    "os.kill(0, 'x')",
    "raise type('Unprintable', (Exception,), {'__str__': lambda self: 1 / 0})",
)


def one_of_every_group(fakes: Fakes, code: str, requires: str = "") -> list[str]:
    """A distribution per group of entry points, each with this code."""
    names = [f"sick-{group.replace('.', '-').replace('_', '-')}" for group in GROUPS]
    for group, name in zip(GROUPS, names):
        module = name.replace("-", "_")
        fakes.add(name, f"[{group}]\n{module} = {module}:thing\n", code, version="3.1", requires=requires)
    return names


@pytest.mark.slow
def test_no_module_that_ends_the_process_ends_a_command(fakes: Fakes, caplog: pytest.LogCaptureFixture) -> None:
    names = one_of_every_group(fakes, "import os, sys\nsys.exit('that is all')\n")
    for command in COMMANDS:
        caplog.clear()
        out = fakes.rlhf(*command)
        faults = command[0] in ("doctor", "no-such-command") or command[:2] == ("plugins", "check")
        assert out.returncode == (2 if "stepz" in command[-1] or command[0].startswith("no-") else int(faults)), command
        said = out.stdout + out.stderr + caplog.text
        assert not re.search(r"^that is all$", said, re.MULTILINE), command
        if command == TRAIN:
            assert "hook plugin 'sick-rlhf/sick_rlhf' (sick-rlhf 3.1) cannot be loaded: SystemExit" in said
        if command == ("plugins", "check"):
            assert [name for name in names if f"{name} 3.1, entry point" not in said] == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_selected_component_that_ends_the_process_is_named(fakes: Fakes, ending: str) -> None:
    fakes.add("sick-loss", "[rlhf.loss]\nsick = sick_loss:Config\n", f"import os, sys\n{ending}\n", version="3.1")
    out = fakes.rlhf(*TRAIN, "--loss", "sick")
    assert out.returncode == 2
    assert "loss 'sick' cannot be loaded" in out.stderr
    assert "sick-loss 3.1" in out.stderr


def test_what_a_module_prints_stays_out_of_a_commands_json(fakes: Fakes) -> None:
    fakes.add("loud-hook", "[rlhf]\nloud = loud_hook:thing\n", "print('hello')\nclass thing: ...\n")
    out = fakes.rlhf(*TRAIN, "--json")
    assert out.returncode == 0, out.stderr
    assert "config" in json.loads(out.stdout)
    assert "hello" in out.stderr


@pytest.mark.parametrize("passing", [KeyboardInterrupt(), StageTimeout.__new__(StageTimeout)])
def test_ctrl_c_and_deadlines_pass(passing: BaseException) -> None:
    with pytest.raises(type(passing)), foreign_code("it", "here", ""):
        raise passing


@pytest.mark.parametrize("refusal", [PluginError, ConfigError])
def test_the_refusal_names_what_and_where(refusal: type[PluginError]) -> None:
    with pytest.raises(refusal, match=r"it is broken: SystemExit: 3\n  where: acme 1.0"):  # noqa: SIM117
        with foreign_code("it is broken", "acme 1.0", "", refusal):
            raise SystemExit(3)


@pytest.mark.parametrize(
    "requires",
    [
        "rlhf-core>=0.7,<0.8",
        "RLHF_Core (>=9)",
        "rlhf.core>=9 ; python_version > '3'",
        "rlhf-core>=0.1\nRequires-Dist: rlhf-core>=9",
        "rlhf-core[all]>=9",
    ],
)
def test_nothing_of_a_package_for_another_core_is_imported(fakes: Fakes, requires: str) -> None:
    one_of_every_group(fakes, f"open({str(fakes.folder / 'imported')!r}, 'a').write(__name__ + ' ')\n", requires)
    commands = COMMANDS if requires.startswith("rlhf-core>=0.7") else (TRAIN, ("plugins", "check"))
    for command in commands:
        fakes.rlhf(*command)
        imported = fakes.folder / "imported"
        assert not imported.exists(), (command, imported.read_text())


def test_a_component_that_a_hook_adds_is_of_a_distribution_for_this_core(fakes: Fakes) -> None:
    mark = f"open({str(fakes.folder / 'imported')!r}, 'w')\n"
    fakes.add("future-loss", "", mark, requires="rlhf-core>=9")
    hook = (
        "from rlhf_core.hooks import hookimpl\nclass Hooks:\n    @hookimpl\n    def rlhf_register(self, registry):\n"
        "        registry.add('loss', 'late', 'future_loss:Config', distribution='future-loss')\nthing = Hooks()\n"
    )
    fakes.add("adder", "[rlhf]\nadder = adder:thing\n", hook)
    out = fakes.rlhf(*TRAIN, "--loss", "late")
    assert out.returncode == 2
    assert "needs rlhf-core>=9" in out.stderr
    assert not (fakes.folder / "imported").exists()


def test_entry_points_are_loaded_in_one_place() -> None:
    folders = [ROOT / name for name in ("rlhf_core", "plugins", "eval", "extensions")]
    files = [file for folder in folders for file in folder.rglob("*.py") if "tests" not in file.parts]
    loads = [str(f.relative_to(ROOT)) for f in files if re.search(r"\bpoints?\b[^\n]*\.load\b", f.read_text())]
    assert loads == ["rlhf_core/plugins/entry_points.py"]


HOOKS = """
from rlhf_core.hooks import hookimpl

class Hooks:
    @hookimpl
    def rlhf_step_end(self, event):
        open("steps", "a").write("x")
    {wrong}

hooks = Hooks()
"""
WRONG = {
    "@hookimpl\n    def rlhf_step_ends(self, event): ...": "rlhf_step_ends: there is no such hook; did you mean",
    "@hookimpl\n    def rlhf_eval_end(self, evnt): ...": "rlhf_eval_end: it asks for evnt; it gets event",
    "@hookimpl(wrapper=True)\n    def rlhf_eval_end(self, event): yield": "rlhf_eval_end: it is a wrapper",
    "@hookimpl(specname='rlhf_ends')\n    def ends(self, event): ...": "ends: there is no such hook; did you mean",
    "def rlhf_eval_end(self, event): ...": "rlhf_eval_end: it is not marked with @hookimpl",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_one_wrong_hook_leaves_the_others_of_its_object_on(fakes: Fakes, wrong: str) -> None:
    from rlhf_core.plugins import hooks

    namespace: dict[str, object] = {}
    exec(HOOKS.format(wrong=wrong), namespace)
    manager = hooks.HookManager()
    with pytest.raises(TypeError) as caught:
        hooks.register_plugin(manager, namespace["hooks"], "acme/hooks")
    assert str(caught.value).startswith(WRONG[wrong])
    assert "the others listen: rlhf_step_end" in str(caught.value)
    assert [impl.plugin_name for impl in manager.hook.rlhf_step_end.get_hookimpls()] == ["acme/hooks"]
    assert manager.hook.rlhf_eval_end.get_hookimpls() == []
    assert hooks.register_plugin(manager, type(namespace["hooks"])(), "other") if "marked" in wrong else True


def test_a_misspelled_hook_is_said_and_its_neighbour_is_called(fakes: Fakes, caplog: pytest.LogCaptureFixture) -> None:
    code = HOOKS.format(wrong=next(iter(WRONG))).replace("rlhf_step_end(", "rlhf_plan_resolved(")
    fakes.add("typo-hook", "[rlhf]\nobserver = typo_hook:hooks\n", code)
    out = fakes.rlhf(*TRAIN)
    assert out.returncode == 0, out.stderr
    assert "rlhf_step_ends: there is no such hook; did you mean 'rlhf_step_end'" in out.stderr + caplog.text
    assert (fakes.folder / "steps").read_text() == "x"
    assert fakes.rlhf("plugins", "check", "typo-hook").returncode == 1


def test_a_hook_that_ends_the_process_is_one_that_failed() -> None:
    bus = HookBus(HookManager())
    assert bus.call("hook x of plugin 'acme'", "acme:x", lambda: exec("raise SystemExit(json)", {"json": json})) is None
    assert bus.errors == {"acme:x": 1}


def test_listeners_hear_of_a_failure_without_a_message(tmp_path: Path) -> None:
    heard: list[str] = []

    class Listener:
        @hookimpl
        def rlhf_run_closed(self, event: RunEnd) -> None:
            heard.append(event.error)

    bus = HookBus(HookManager())
    bus.manager.register(Listener())
    (tmp_path / "plan.json").write_text("{}")
    _closed(RunDir(tmp_path), bus, type("Unprintable", (Exception,), {"__str__": lambda self: 1 / 0})())
    assert heard == ["Unprintable without a message"]


def test_user_files_that_end_the_process_are_refused(tmp_path: Path) -> None:
    from rlhf_plugin_discover.verifier import load_check
    from rlhf_plugin_episodes.functions import load_functions

    file = tmp_path / "mine.py"
    file.write_text("import sys\nsys.exit('bye')\n")
    for load in (load_check, load_functions):
        with pytest.raises(ConfigError, match=r"SystemExit: bye\n  where: .*mine\.py"):
            load(str(file))


RANK = "import types\ndef join(nproc):\n    return types.SimpleNamespace(rank=0, world_size=2)\n"


def test_of_several_launchers_only_one_may_join(fakes: Fakes, caplog: pytest.LogCaptureFixture) -> None:
    fakes.add("one-launcher", "[rlhf.launcher]\none = one_launcher:join\n", "def join(nproc):\n    return None\n")
    fakes.add("sick-launcher", "[rlhf.launcher]\nsick = sick_launcher:join\n", "import no_such_module_here\n")
    out = fakes.rlhf(*TRAIN)
    assert out.returncode == 0, out.stderr
    assert "launcher 'sick' cannot be loaded" in caplog.text
    assert "sick-launcher 1.0" in caplog.text
    fakes.add("two-launcher", "[rlhf.launcher]\ntwo = two_launcher:join\n", RANK)
    fakes.add("too-launcher", "[rlhf.launcher]\ntoo = too_launcher:join\n", RANK)
    out = fakes.rlhf(*TRAIN)
    assert out.returncode == 2
    assert "too-launcher/too and two-launcher/two both join ranks" in out.stderr
    assert "rlhf plugins disable" in out.stderr
