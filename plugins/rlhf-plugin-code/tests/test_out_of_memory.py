"""When the machine runs out of memory, the kernel kills programs that did nothing wrong."""

from __future__ import annotations

import pytest

from rlhf_plugin_code import sandbox as sandbox_module
from rlhf_plugin_code.sandbox import Sandbox, SandboxError

KILLED = "import os\nos._exit(9)"
COUNT = (
    "import itertools\nfrom rlhf_plugin_code.inside import tasks\n"
    "kills = itertools.count()\ntasks.Watch.oom_kills = lambda self: next(kills)\n"
)
"""A machine on which the kernel kills something all the time."""


def test_a_program_that_ends_itself_has_a_verdict(sandbox: Sandbox) -> None:
    assert sandbox.script(KILLED).code == 9
    assert sandbox.tests(KILLED, ["assert f(1)"]).passed == (False,)


def test_no_verdict_on_a_program_that_the_kernel_may_have_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    path, rest = sandbox_module.BOOT.split("; from ", 1)
    monkeypatch.setattr(sandbox_module, "BOOT", f"{path}; exec({COUNT!r}); from {rest}")
    with Sandbox() as box:
        for run in (lambda: box.script(KILLED), lambda: box.tests(KILLED, ["assert f(1)"])):
            with pytest.raises(SandboxError, match="ran out of memory"):
                run()
        assert box.script("print(1)").stdout == "1\n"
        assert box.tests("def f(x): return x", ["assert f(1)"]).passed == (True,), "a right one is right all the same"
