"""What a program must not gain by names, by exceptions, or by what it does before its tests are ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_plugin_code.config import AssertsConfig
from rlhf_plugin_code.sandbox import Sandbox

FORGED = "x = best = values = 6\nclass total: pass\n"


@pytest.mark.parametrize(
    "tests",
    [
        "x = f(3)\nassert x == 6\nassert x == 6",
        "assert (best := f(3)) == 6\nassert best == 6",
        "for values in [f(3)]:\n    assert values == 6\nassert values == 6",
        "def measure():\n    global x\n    x = f(3)\nmeasure()\nassert x == 6\nassert x == 6",
        "def check():\n    return x\nx = f(3)\nassert check() == 6\nassert check() == 6",
    ],
)
def test_a_name_that_the_tests_bind_is_never_the_programs(
    verify: Callable[..., Any], sample: Callable[..., Sample], tests: str
) -> None:
    config = AssertsConfig(credit="mean")
    assert verify(config, sample(FORGED + "def f(n): raise ValueError", tests=tests)).value == 0.0
    assert verify(config, sample("def f(n): return 2 * n", tests=tests)).value == 1.0


@pytest.mark.parametrize(
    "test",
    [
        "double = double(3)\nassert double == 6",
        "assert [double(n) for n in (1, 2)] == [2, 4]\ndouble = 3",
        "def check():\n    return double(3)\nassert check() == 6",
        "class Case:\n    got = double(3)\nassert Case.got == 6",
        "run = lambda g=double: g(3)\nassert run() == 6",
        "total = 0\ntotal += double(3)\nassert total == 6",
        "try:\n    double()\nexcept TypeError as error:\n    assert error.args",
        "match double(3):\n    case int() as got:\n        assert got == 6",
    ],
)
def test_a_name_that_the_tests_read_first_is_the_programs(sandbox: Sandbox, test: str) -> None:
    report = sandbox.tests("total = got = error = 7\ndef double(n): return 2 * n", [test])
    assert report.passed == (True,), report
    assert sandbox.tests("total = got = 6", [test]).passed == (False,)


def test_an_exception_of_the_program_ends_no_loop_of_the_tests(sandbox: Sandbox) -> None:
    loops = [
        "assert all(map(f, [1, 2]))",
        "assert not any(map(f, [1, 2]))",
        "assert list(map(f, [1, 2])) == []",
        "assert list(filter(f, [1, 2])) == []",
        "assert list(iter(lambda: f(1), None)) == []",
        "for _ in map(f, [1]): assert False",
    ]
    for error in ("StopIteration", "type('Own', (StopIteration,), {})()", "StopAsyncIteration"):
        report = sandbox.tests(f"def f(x): raise {error}", loops)
        assert report.passed == (False,) * len(loops), report
    expects = "try:\n    f(1)\n    assert False\nexcept StopIteration:\n    pass"
    assert sandbox.tests("def f(x): raise StopIteration", [expects]).passed == (True,), "these tests ask for it"


@pytest.mark.parametrize(
    "bomb",
    [
        "held = []\nwhile True: held.append(b'x' * (1 << 24))",
        "import os\nwhile True: os.fork()",
        "while True: pass",
        "import os\nos._exit(0)",
    ],
)
def test_a_bomb_does_not_reach_tests_with_a_slow_setup(
    verify: Callable[..., Any], sample: Callable[..., Sample], bomb: str
) -> None:
    """It is the program's own failure: 0.0, not a missing score."""
    row = {"tests": ["assert f(1) == 1"], "test_setup": "import time\ntime.sleep(0.4)"}
    score = verify(AssertsConfig.model_validate({"sandbox": {"timeout_s": 0.5}}), sample(bomb, **row))
    assert (score.value, score.status) == (0.0, ScoreStatus.OK), score
