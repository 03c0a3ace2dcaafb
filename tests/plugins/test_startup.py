"""Help and listing: instant, and nothing heavy or foreign is imported."""

from __future__ import annotations

import os
import sys

import pytest

from .conftest import Fakes, call, environment

PROBE = """
import sys, atexit
def tell():
    sys.stderr.write("IMPORTED " + " ".join(m for m in ("numpy", "torch", "transformers") if m in sys.modules) + "|")
atexit.register(tell)
from rlhf_core.cli.main import main
main(sys.argv[1:])
"""
COMMANDS = [["--help"], ["plugins", "list"], ["plugins", "list", "--json"]]


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_nothing_heavy_is_imported(args: list[str]) -> None:
    out = call([sys.executable, "-c", PROBE, *args], env=environment())
    assert out.returncode == 0, out.stderr
    assert "IMPORTED |" in out.stderr


@pytest.mark.parametrize("args", COMMANDS[:2], ids=" ".join)
def test_it_takes_less_than_300_ms_of_cpu(args: list[str]) -> None:
    assert min(cpu_seconds([sys.executable, "-m", "rlhf_core.cli.main", *args]) for _ in range(4)) < 0.3


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one call; other processes on the machine do not count."""
    before = os.times()
    # with an `executable` it is an interpreter of its own, and no fork of one with torch in it
    out = call(command, executable=command[0], env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = os.times()
    assert out.returncode == 0, out.stderr
    return after.children_user - before.children_user + after.children_system - before.children_system


def test_listing_never_imports_a_plugin(fakes: Fakes) -> None:
    code = 'raise SystemExit("imported")\n'
    fakes.add("loud-loss", "[rlhf.loss]\nloud = loud_loss:Config\n[rlhf]\nobserver = loud_loss:hooks\n", code)
    for args in (
        ["--help"],
        ["plugins", "list"],
        ["plugins", "disable", "loud-loss"],
        ["plugins", "enable", "loud-loss"],
    ):
        out = fakes.rlhf(*args)
        assert out.returncode == 0, out.stderr
    assert "loud-loss" in fakes.rlhf("plugins", "list", "--json").stdout
