"""Compares what a program printed with what it should have printed."""

from __future__ import annotations

import math


def same_output(printed: str, expected: str, tolerance: float) -> bool:
    """Equal line by line but for white space and trailing empty lines; tokens may be numbers that are close.

    Example:
        >>> same_output("1.0000001 yes\\n", "1 yes", 1e-6)
        True
    """
    printed_lines, expected_lines = _lines(printed), _lines(expected)
    return len(printed_lines) == len(expected_lines) and all(
        len(a) == len(b) and all(same_token(x, y, tolerance) for x, y in zip(a, b))
        for a, b in zip(printed_lines, expected_lines)
    )


def _lines(text: str) -> list[list[str]]:
    lines = [line.split() for line in text.strip().splitlines()]
    return [line for line in lines if line] if any(not line for line in lines) else lines


def same_token(printed: str, expected: str, tolerance: float) -> bool:
    """Equal text, or two numbers that are close. Integers are compared exactly."""
    if printed == expected:
        return True
    if len(printed) > 40 or len(expected) > 40 or not tolerance or (_whole(printed) and _whole(expected)):
        return False
    try:
        a, b = float(printed), float(expected)
    except ValueError:
        return False
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def _whole(token: str) -> bool:
    return token.lstrip("+-").isdigit()
