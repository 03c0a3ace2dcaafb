"""592 vectors in 11 dimensions, exact in Z[sqrt 3]: Ganzhinov, "Highly symmetric lines" (2022), arXiv:2207.08266.

Two orbits of PSU(4, 2) in C^5, here the vectors of C^6 whose first two coordinates are equal: 80 vectors ``u`` and the
270 roots ``r`` of the reflection group G33. With w a cube root of 1 and e the eleventh direction, the configuration is
``i r, u, w u, sqrt(3)/2 w^2 u +- e/2, +-e``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product
from typing import NamedTuple

DIMENSIONS = 11
SCALE = 12
"""Makes every coordinate integer."""


class Eisenstein(NamedTuple):
    """``x + y sqrt(-3)``."""

    x: Fraction
    y: Fraction

    def times(self, other: Eisenstein) -> Eisenstein:
        return Eisenstein(self.x * other.x - 3 * self.y * other.y, self.x * other.y + self.y * other.x)


Vector = Sequence[Eisenstein]
"""Five numbers; the first stands for two equal coordinates."""

HALF = Fraction(1, 2)
ZERO, ONE = Eisenstein(Fraction(0), Fraction(0)), Eisenstein(Fraction(1), Fraction(0))
CUBE_ROOTS = (ONE, Eisenstein(-HALF, HALF), Eisenstein(-HALF, -HALF))
THIRD, MINUS_TWO = Eisenstein(Fraction(1, 3), Fraction(0)), Eisenstein(Fraction(-2), Fraction(0))
ONE_OVER_ROOT = Eisenstein(Fraction(0), Fraction(-1, 3))
"""1 / sqrt(-3)."""


def points() -> list[list[list[int]]]:
    """``[592, 11, 2]``: a coordinate ``[a, b]`` is ``a + b sqrt(3)``; every squared norm is 576."""
    orbit, flat = list(_orbit()), [*_roots()]
    for root in CUBE_ROOTS[:2]:
        flat += [_times(root, u) for u in orbit]
    rows = [[*_real(v), (Fraction(0), Fraction(0))] for v in flat]
    for u in orbit:
        raised = [(3 * b / 2, a / 2) for a, b in _real(_times(CUBE_ROOTS[2], u))]
        rows += [[*raised, (Fraction(h), Fraction(0))] for h in (1, -1)]
    rows += [[(Fraction(0), Fraction(0))] * 10 + [(Fraction(h), Fraction(0))] for h in (2, -2)]
    return [[[int(SCALE * a), int(SCALE * b)] for a, b in row] for row in rows]


def _orbit() -> Iterator[Vector]:
    """80 vectors of squared norm 2, and with them their negatives."""
    yield from _signed([ONE, ZERO, ZERO, ZERO, ZERO])
    for place, root in product(range(4), CUBE_ROOTS):
        others = [root.times(MINUS_TWO) if i == place else ZERO for i in range(4)]
        yield from _signed(_times(ONE_OVER_ROOT, [ONE, *others]))
    for powers in product(range(3), repeat=4):
        if sum(powers) % 3 == 0:
            yield from _signed(_times(THIRD, [ONE, *(CUBE_ROOTS[k].times(MINUS_TWO) for k in powers)]))


def _roots() -> Iterator[Vector]:
    """270 vectors of squared norm 2: the roots of G33 over ``sqrt(-3)``."""
    for i, j in combinations(range(1, 5), 2):
        for a, b in product(CUBE_ROOTS, repeat=2):
            yield from _signed([a if n == i else Eisenstein(-b.x, -b.y) if n == j else ZERO for n in range(5)])
    for powers in product(range(3), repeat=5):
        if (2 * powers[0] + sum(powers[1:])) % 3 == 0:
            yield from _signed(_times(ONE_OVER_ROOT, [CUBE_ROOTS[k] for k in powers]))


def _times(factor: Eisenstein, vector: Vector) -> Vector:
    return [factor.times(z) for z in vector]


def _signed(vector: Vector) -> Iterator[Vector]:
    yield vector
    yield [Eisenstein(-z.x, -z.y) for z in vector]


def _real(vector: Vector) -> list[tuple[Fraction, Fraction]]:
    """Ten coordinates ``a + b sqrt(3)``, whose squares sum to twice the squared norm."""
    (x, y), *others = vector
    zero = Fraction(0)
    return [(2 * x, zero), (zero, 2 * y), *((z.x, sign * z.y) for z in others for sign in (1, -1))]
