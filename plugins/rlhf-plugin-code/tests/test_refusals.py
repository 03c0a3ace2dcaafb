"""Where programs cannot be confined nothing is judged: no right program gets 0.0, and no check says ok."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.plugins.registry import Registry
from rlhf_plugin_code import preflight
from rlhf_plugin_code import sandbox as sandbox_module
from rlhf_plugin_code.config import AppsConfig, ProgramConfig
from rlhf_plugin_code.sandbox import Limits, Sandbox, SandboxError

REFUSE = "def refuse(*_): raise OSError(22, 'Invalid argument')\n"
FAULTS = {
    "seccomp refused": REFUSE + "from rlhf_plugin_code.inside import seccomp as part; part.install = refuse\n",
    "landlock refused": REFUSE + "from rlhf_plugin_code.inside import landlock as part\n"
    "part.restrict, part.abi = refuse, lambda: 7\n",
    "seccomp without effect": "from rlhf_plugin_code.inside import seccomp as part\n"
    "part.install = lambda lines: None\n",
}


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A kernel that lacks something: the real zygote, in which one step fails."""
    path, rest = sandbox_module.BOOT.split("; from ", 1)
    lines = f"exec({FAULTS[request.param]!r}); "
    monkeypatch.setattr(sandbox_module, "BOOT", f"{path}; {lines}from {rest}")
    preflight._isolation.cache_clear()
    yield request.param
    preflight._isolation.cache_clear()


def test_nothing_runs_and_nothing_is_judged(fault: str) -> None:
    with pytest.raises(ConfigError, match="no isolation") as caught:
        Sandbox().start()
    assert ("has no effect" if fault.endswith("effect") else "Invalid argument") in caught.value.why
    assert caught.value.exit_code == 2
    context = BuildContext(config=None, registry=Registry(disabled=()), seed=0)  # pyright: ignore[reportArgumentType]
    for check in (
        AppsConfig.diagnose,  # what the doctor asks; it warns
        AppsConfig().conditions,
        lambda: ProgramConfig().preflight(context),
        lambda: AppsConfig().build(context),
    ):
        with pytest.raises(ConfigError):
            check()


def test_a_program_that_cannot_be_confined_later_is_an_error_too(sandbox: Sandbox) -> None:
    """As where memory for the filter runs out: the sandbox is up, one program does not get that far."""
    with Sandbox() as box:
        box.limits = Limits(disk_mb=-1)
        for run in (lambda: box.script("print(1)"), lambda: box.command(["bash", "-c", "echo 1"])):
            with pytest.raises(SandboxError, match="no program can be run in the sandbox: OSError"):
                run()
        assert "Invalid argument" in box.tests("def f(): return 1", ["assert f() == 1"]).broken


def test_a_command_that_is_not_there_is_refused_before_the_run(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="No such file"):
        sandbox.command(["no-such-command", "main"])
    context = BuildContext(config=None, registry=Registry(disabled=()), seed=0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="no-such-command main") as caught:
        ProgramConfig(command=("no-such-command", "main")).preflight(context)
    assert "No such file" in caught.value.why
    ProgramConfig(command=("bash", "main")).preflight(context)


def test_the_smallest_limits_are_enough_for_a_program() -> None:
    with Sandbox(Limits(memory_mb=64, disk_mb=1, processes=1, output_kb=1)) as box:
        assert box.script("print(1)").stdout == "1\n"
