"""What each rank has measured of its completions, brought to all: their monitors read, keep and say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from rlhf_plugin_hacking.second import Pairs

T = TypeVar("T")


class Measured(NamedTuple):
    """Of one rank's completions of a step."""

    completions: int
    """That were scored."""
    slope: Mapping[str, float]
    """:func:`~rlhf_plugin_hacking.length.length_slope`"""
    lengths: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """:func:`~rlhf_plugin_hacking.classic.length_sums`"""
    pairs: Pairs | None = None
    """None without a second reward, and in steps in which it does not score."""


def gather_measured(strategy: Any, measure: Callable[[], T]) -> list[T]:
    """Every rank's value, in rank order; all ranks call this in the same steps.

    Raises:
        RuntimeError: on the other ranks, where one could not measure: none waits for it.
    """
    if strategy is None or strategy.world_size == 1:
        return [measure()]
    value, failure = None, None
    try:
        value = measure()
    except Exception as error:
        failure = error
    rows = strategy.gather_objects((value, "" if failure is None else f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    for rank, (_, problem) in enumerate(rows):
        if problem:
            raise RuntimeError(f"rank {rank}: {problem}")
    return [value for value, _ in rows]
