"""Compares what a program printed with what it should have printed."""

from __future__ import annotations

import math


def same_output(said: str, wanted: str, tolerance: float) -> bool:
    """Equal line by line but for white space and trailing empty lines; tokens may be numbers that are close.

    Example:
        >>> same_output("1.0000001 yes\\n", "1 yes", 1e-6)
        True
    """
    ours, theirs = _lines(said), _lines(wanted)
    return len(ours) == len(theirs) and all(
        len(a) == len(b) and all(same_token(x, y, tolerance) for x, y in zip(a, b)) for a, b in zip(ours, theirs)
    )


def _lines(text: str) -> list[list[str]]:
    lines = [line.split() for line in text.strip().splitlines()]
    return [line for line in lines if line] if any(not line for line in lines) else lines


def same_token(said: str, wanted: str, tolerance: float) -> bool:
    """Equal text, or two numbers that are close. Integers are compared exactly."""
    if said == wanted:
        return True
    if len(said) > 40 or len(wanted) > 40 or not tolerance or (_whole(said) and _whole(wanted)):
        return False
    try:
        a, b = float(said), float(wanted)
    except ValueError:
        return False
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def _whole(token: str) -> bool:
    return token.lstrip("+-").isdigit()
