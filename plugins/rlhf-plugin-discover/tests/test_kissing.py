"""The exact check, the verifier around it, and the search."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlhf_core.config import BuildContext, ConfigError, Registry
from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, Score
from rlhf_plugin_code.config import SandboxSettings
from rlhf_plugin_discover.baseline import program_of
from rlhf_plugin_discover.config import KissingConfig
from rlhf_plugin_discover.kissing.check import _nearest_int64, check_kissing, nearest_pair
from rlhf_plugin_discover.kissing.independent import independent_set
from rlhf_plugin_discover.kissing.search import search, shell, too_near
from rlhf_plugin_discover.verifier import Construction
from rlhf_testing import check_verifier

CONFIG = KissingConfig(sandbox=SandboxSettings(timeout_s=2.0, memory_mb=256))
AXES = [[sign * (i == j) for j in range(11)] for i in range(11) for sign in (1, -1)]


@pytest.fixture(scope="module")
def verifier() -> Iterator[Construction]:
    """Kissing in 11 dimensions, in a warm sandbox."""
    ctx = BuildContext(config=None, registry=Registry(disabled=()), seed=0)  # pyright: ignore[reportArgumentType]
    try:
        construction = CONFIG.build(ctx)
    except ConfigError as error:
        pytest.skip(f"no isolation on this machine: {error.why}")
    yield construction
    construction.close()


def verdict(verifier: Construction, completion: str) -> Score:
    return verifier.verify(Sample(Prompt("k", ({"role": "user", "content": "?"},)), completion))


@pytest.mark.parametrize(
    ("points", "dimensions", "reason"),
    [
        ([[1, 0], [-1, 0], [0, 1], [0, -1]], 2, ""),
        ([[3, 0], [0, 4]], 2, ""),
        (
            [[1, 1], [1, 0]],
            2,
            "minimum squared distance 1 < maximum squared norm 2: vectors 0 [1, 1] and 1 [1, 0] are at "
            "squared distance 1, vector 0 [1, 1] has squared norm 2",
        ),
        ([[1, 0], [1, 0]], 2, "minimum squared distance 0 < maximum squared norm 1: vectors 0 [1, 0] and 1 [1, 0]"),
        ([[1, 0], [0, 0]], 2, "vector 1 is the zero vector"),
        ([], 2, "there is no vector"),
        ({"a": 1}, 2, "the vectors must be a list, not dict"),
        ([[1, 0], 7], 2, "vector 1 is 7, it needs 2"),
        ([[1, 0, 0]], 2, "vector 0 has 3 coordinates, it needs 2"),
        ([[1.0, 0]], 2, "vector 0 has the coordinate '1.0', which is not an integer"),
        ([[True, 0]], 2, "vector 0 has the coordinate 'True', which is not an integer"),
        ([[-(10**999), 0]], 2, ""),
        ([[10**1000, 0]], 2, "vector 0 has a coordinate of more than 1000 digits"),
        ([[1]] * 6000, 1, "6000 vectors are more than the 5000 that are looked at"),
    ],
)
def test_the_check_says_exactly_what_is_wrong(points: Any, dimensions: int, reason: str) -> None:
    checked = check_kissing(points, dimensions)
    assert (checked.valid, checked.reason[: len(reason) or None]) == (not reason, reason)


def test_numbers_beyond_int64_are_compared_exactly() -> None:
    """A pair one short of valid, in numbers where float64 and int64 see no difference, or overflow."""
    big = 10**40
    assert check_kissing([[big, 0], [0, big]], 2).valid
    assert check_kissing([[2 * big, 0], [big, big]], 2).reason.startswith(f"minimum squared distance {2 * big * big} <")
    short = check_kissing([[2**33, 1], [-1, 2**33], [2**33 - 2**32, 2**33 - 1]], 2)
    assert not short.valid
    for bits in (3, 28, 30, 31, 40):  # on both sides of the limit
        rng = random.Random(bits)
        rows = [[rng.randrange(-(2**bits), 2**bits) for _ in range(11)] for _ in range(12)]
        exact = min(
            (sum((a - b) ** 2 for a, b in zip(x, y)), i, j)
            for i, x in enumerate(rows)
            for j, y in enumerate(rows)
            if i < j
        )
        assert nearest_pair(rows) == exact
    assert _nearest_int64(np.array([[0, 0], [5, 5], [5, 6], [0, 1]])) == (1, 0, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "value", "detail"),
    [
        (program_of(AXES), 22.0, ""),
        ("points = {tuple([0] * i + [1] + [0] * (10 - i)) for i in range(11)}", 11.0, ""),
        (
            "points = [[2] + [0] * 10, [1] + [0] * 10]",
            0.0,
            "not valid (2 vectors): minimum squared distance 1 < maximum ",
        ),
        ("vectors = []", 0.0, "the program failed with exit code 1:\nthe program defines no global variable points"),
        ("points = [", 0.0, "the program failed with exit code 1:"),
        ("import sys\npoints = [[1] * 11]\nsys.exit(0)", 0.0, "the program ended before its last line"),
        ("points = [object()]", 0.0, "the program failed with exit code 1:"),
        ("while True: pass", 0.0, "the program did not end within 2 seconds"),
        (
            "points = [[0] * 11]\nprint('\\x1evalue:[[1,0,0,0,0,0,0,0,0,0,0]]')",
            0.0,
            "not valid (1 vectors): vector 0 is",
        ),
        (
            "import json\njson.dumps = lambda *a, **k: '[' * 50000\npoints = 1",
            0.0,
            "what the program left cannot be read",
        ),
        ("", 0.0, "there is no program in the answer"),
    ],
)
def test_a_program_is_worth_what_it_leaves_behind(
    verifier: Construction, program: str, value: float, detail: str
) -> None:
    score = verdict(verifier, program and f"Here:\n```python\n{program}\n```\n")
    assert (score.value, score.detail[: len(detail) or None]) == (value, detail)
    assert score.parts["valid"] == float(value > 0)


def test_the_traceback_goes_back_with_line_numbers_of_the_program(verifier: Construction) -> None:
    score = verdict(verifier, "```python\nx = 1\npoints = [[1] * 11]\nx / 0\n```")
    assert "line 3" in score.detail
    assert score.detail.endswith("ZeroDivisionError: division by zero")


def test_kissing_is_a_verifier_like_any_other() -> None:
    check_verifier(CONFIG)


@pytest.mark.parametrize(("dimensions", "norm", "best_known"), [(2, 1, 4), (3, 2, 12), (4, 2, 24), (8, 4, 240)])
def test_the_search_finds_the_known_best(dimensions: int, norm: int, best_known: int) -> None:
    vectors = search(dimensions, norm=norm, steps=20_000, starts=1)
    assert len(vectors) == best_known
    assert check_kissing(vectors, dimensions).valid
    assert vectors == search(dimensions, norm=norm, steps=20_000, starts=1)


def test_the_search_is_independent_and_stops_when_asked_to() -> None:
    near = too_near(shell(6, 4))
    sizes: list[int] = []
    chosen = independent_set(
        near, seed=1, steps=100_000, stop=lambda: True, improved=lambda best: sizes.append(len(best))
    )
    assert not {w for v in chosen for w in near[v]} & set(chosen)
    assert sizes[-1] == len(chosen)
    assert sizes == sorted(sizes)
    longer = independent_set(near, seed=1, steps=20_000, start=chosen)
    assert len(longer) >= len(chosen)
    with pytest.raises(ValueError, match="too many to search"):
        shell(11, 12)
    with pytest.raises(ValueError, match="no integer vector"):
        shell(2, 3)
