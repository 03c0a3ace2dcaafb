"""What a device check found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlhf_core.config import RlhfError

Verdict = Literal["agrees", "differs", "failed", "measured", "not run"]
"""``failed``: it could not be computed here; ``measured``: there is nothing to compare it with."""


@dataclass(frozen=True)
class Comparison:
    """One way to compute something against the plain one."""

    what: str
    verdict: Verdict
    detail: str
    seconds: float = 0.0
    speedup: float | None = None
    """Times as fast as the plain way; None where there is none to compare with."""

    def line(self) -> str:
        speed = "" if self.speedup is None else f"  {self.speedup:.2f} x as fast"
        took = f"  {self.seconds:.3g} s" if self.seconds else ""
        return f"{self.verdict:<8} {self.what:<36} {self.detail}{took}{speed}".rstrip()


@dataclass(frozen=True)
class Report:
    device: str
    model: str
    seconds: float
    versions: dict[str, str]
    rows: tuple[Comparison, ...]

    @property
    def agrees(self) -> bool:
        return not any(row.verdict in ("differs", "failed") for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "agrees": self.agrees}


def guarded(what: str, compare: Callable[[], Iterator[Comparison]]) -> Iterator[Comparison]:
    """The comparisons that are made, and a row that says why the others are not: one must not end the check."""
    try:
        yield from compare()
    except Exception as error:
        yield failure(what, error)


def failure(what: str, error: Exception) -> Comparison:
    if isinstance(error, RlhfError):
        return Comparison(what, "failed", "; ".join(part for part in (error.what, error.why) if part))
    first = (str(error).splitlines() or [""])[0]
    return Comparison(what, "failed", f"{type(error).__name__}: {first}")
