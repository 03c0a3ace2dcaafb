"""How a rank ends: whatever threads of gloo still want, nothing waits for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

GROUP_LIVES = """
import sys
import torch.distributed as dist
from rlhf_core.distributed.accelerated import AcceleratedStrategy

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
strategy = object.__new__(AcceleratedStrategy)
strategy.world_size = 2  # the only thing that close() asks
group = dist.group.WORLD
strategy.close()
assert not dist.is_initialized()
print(sys.getrefcount(group))
"""
LEAVES = """
import atexit, sys, threading, time
from rlhf_core.cli.rank_main import hard_exit

class Stuck:
    def __del__(self):
        time.sleep(100)

stuck = Stuck()
threading.Thread(target=time.sleep, args=(100,)).start()
atexit.register(print, "told at exit")
sys.stdout.write("not flushed ")
hard_exit(3)
"""

IN_TORCH = """
import sys, threading
import torch
from rlhf_core.cli.main import main

inside = threading.Event()

def work():
    weight = torch.randn(300, 300, requires_grad=True)
    while True:
        (weight @ weight).sum().backward()
        inside.set()

threading.Thread(target=work, daemon=True).start()
inside.wait()
sys.argv = ["rlhf", "no-such-command"]
main()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_the_process_group_is_left_but_never_destroyed() -> None:
    """Its destructor joins threads that may need the interpreter lock, which the destructor's caller holds."""
    out = run(GROUP_LIVES)
    assert out.returncode == 0, out.stderr
    assert int(out.stdout) == 3, "this name, the call's own, and one that is never given back"


def test_a_rank_leaves_without_taking_the_interpreter_down() -> None:
    out = run(LEAVES)
    assert (out.returncode, out.stdout) == (3, "not flushed told at exit\n"), out.stderr


@pytest.mark.slow
def test_a_command_ends_with_its_own_code_while_a_daemon_thread_is_inside_torch() -> None:
    """The interpreter would end that thread in the middle of C++, which aborts the process."""
    out = run(IN_TORCH)
    assert out.returncode == 2, out.stderr
    assert "no-such-command" in out.stderr
