"""Every attack is stopped, and the program beside it gets the right verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from rlhf_core.config import ConfigError
from rlhf_plugin_code.redteam.__main__ import Neighbour
from rlhf_plugin_code.redteam.arena import CONTROLS, LIMITS, Arena, arena
from rlhf_plugin_code.redteam.attacks import GROUPS, Attack
from rlhf_plugin_code.results import Limits, longest_s
from rlhf_plugin_code.sandbox import UNSAFE, Sandbox

FAST = {
    "resources": [
        "fork bomb that reports",
        "memory bomb of many processes",
        "disk fill",
        "infinite output",
        "daemon that stays",
        "sessions that take their neighbours' share of the CPU",
        "traps for the next program",
    ],
    "escapes": [
        "a secret file by its path",
        "killing the parent",
        "inherited descriptors",
        "mounting",
        "becoming root",
        "a TCP connection to the host",
        "a new user namespace",
        "system calls of another architecture",
        "other software's files below /usr",
        "importing what is installed",
    ],
    "verdicts": [
        "sys.exit(0) before the tests",
        "os._exit(0) inside the call",
        "an object equal to everything",
        "shadowed names",
        "verdicts on every descriptor",
        "reading the tests from the frames",
        "a pickle",
    ],
}
"""A part for every change; ``slow`` runs the rest."""


@pytest.fixture(scope="module")
def ground() -> Iterator[Arena]:
    try:
        with Sandbox():
            pass
    except ConfigError as error:
        pytest.skip(f"no isolation on this machine: {error.why}")
    with arena(replace(LIMITS, timeout_s=1.0)) as attacked:
        yield attacked


@pytest.mark.parametrize(("group", "name"), [(g, n) for g in FAST for n in FAST[g]])
def test_attack(ground: Arena, group: str, name: str) -> None:
    outcome = ground.attack(group, name)
    assert outcome.won == "", outcome
    assert outcome.seconds < longest_s(LIMITS.timeout_s)


def test_there_are_forty_of_them() -> None:
    assert sum(map(len, GROUPS.values())) >= 40
    assert {n for names in FAST.values() for n in names} <= {n for names in GROUPS.values() for n in names}


def test_the_arena_notices_success(ground: Arena) -> None:
    """Right answers pass and claims are heard: the attacks fail because of the isolation, not because of the arena."""
    assert ground._verdict(Attack("def f(x): return 5", "assert f(7) == 5"))[0] == "a test passed"
    assert ground._claims(ground.sandbox.script("print('WON')"))
    assert ground._claims(ground.sandbox.script(f"print('{ground.secret}')")) == "read the secret"
    (ground.folder / "evil").touch()
    assert ground._traces() == "changed files"
    (ground.folder / "evil").unlink()
    assert ground._traces() == ""


class NoIsolation(Sandbox):
    """Runs programs with this user's rights, to see that an attack would succeed."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, unsafe_local_execution=True)

    def _choices(self) -> Iterator[tuple[str, list[str], bool]]:
        yield UNSAFE, [], False


def test_controls_win_without_isolation() -> None:
    """The same attacks, harmless ones, where nothing stops them: the arena would see a success."""
    with arena(replace(LIMITS, timeout_s=10.0), NoIsolation) as open_ground:
        for name in CONTROLS:
            code = open_ground._fill(GROUPS["escapes"][name].code)
            if name == "secrets in the environment":  # a program never gets the trainer's; one is planted
                code = f"import os\nos.environ['PLANTED_KEY'] = {open_ground.secret!r}\n{code}"
            assert open_ground._claims(open_ground.sandbox.script(code)), name


@pytest.mark.long
@pytest.mark.slow
def test_all_attacks_beside_a_neighbour(ground: Arena) -> None:
    with Neighbour() as neighbour:
        won = [o for g in GROUPS for n in GROUPS[g] if (o := ground.attack(g, n)).won]
    assert won == []
    assert len(neighbour.times) > 10
    assert neighbour.wrong == 0
