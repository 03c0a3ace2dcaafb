"""One exception tree. The class decides the exit code: 2 for the user's input, 1 for a failed run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path


class RlhfError(Exception):
    """A failure the toolkit explains: what, where, why, and what to do next."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        rows = [what]
        rows += [f"  {label}: {text}" for label, text in (("where", where), ("why", why), ("fix", fix)) if text]
        super().__init__("\n".join(rows))


class UserError(RlhfError, ValueError):
    """The user's input was wrong. Raised before any expensive work; exit code 2."""

    exit_code = 2


class ConfigError(UserError):
    """A configuration key or value cannot be used."""


class DatasetError(UserError):
    """A dataset is missing, empty or malformed."""


class ModelError(UserError):
    """A model cannot be found, is incomplete, or does not fit the request."""


class RunDirError(UserError):
    """A run directory cannot be created, is taken, or cannot be resumed."""


class PluginError(UserError):
    """A selected component cannot be used: unknown, ambiguous, broken or incompatible."""


class ScoreError(RlhfError, RuntimeError):
    """Too many scores are missing for the run to mean anything."""


class TrainingDiverged(RlhfError, ArithmeticError):
    """A loss or gradient is not finite; the last good checkpoint is kept."""


class DeadlineExceeded(RlhfError, TimeoutError):
    """A wait ran past its deadline; the message names what was awaited."""


class EngineUnavailable(RlhfError, RuntimeError):
    """A rollout engine has nothing left to sample with: its servers are gone. The run saves what it can, and ends."""

    unchanged = False
    """Whether the run still is what it was at the end of the last step, and can be saved so; set by the core."""
    prompts_put_back = False
    """Whether the batch that could not be sampled has left no trace: its prompts come next; set by the core."""
    on_every_rank = False
    """Whether all ranks of the run raise it at the same point; set by the core."""


class OtherRankFailed(RlhfError, RuntimeError):
    """Another rank of the run failed; what it says itself comes before this."""


class ComponentError(RlhfError, RuntimeError):
    """A component raised an exception of its own, which is the ``__cause__``; the message names its distribution."""


class StopRun(Exception):
    """Raised by a hook or monitor to end the run cleanly, after the current step and a checkpoint."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def denies(name: str) -> bool:
    """Whether a name says that something is not there. Example: ``no_baseline``"""
    return not {"no", "non", "not", "without"}.isdisjoint(name.lower().replace("-", "_").split("_"))


def did_you_mean(name: str, known: Iterable[str], limit: int = 3, prefix: str = "") -> str:
    """Return ``"did you mean 'x'?"`` for the nearest known names, each with ``prefix`` in front, or an empty string. To
    a name that denies something no name is near that does not.

    Example:
        >>> did_you_mean("grop", ["grpo", "sft"])
        "did you mean 'grpo'?"
    """
    near = difflib.get_close_matches(name, [k for k in known if denies(k) or not denies(name)], n=limit, cutoff=0.6)
    return f"did you mean {' or '.join(repr(prefix + n) for n in near)}?" if near else ""


def bullets(rows: Sequence[str], most: int = 8) -> str:
    """Rows of an error's text, each on a line of its own; those beyond ``most`` are counted."""
    more = [f"and {len(rows) - most} more"] if len(rows) > most else []
    return "".join(f"\n  - {row}" for row in (*rows[:most], *more))


def error_text(error: BaseException) -> str:
    """An exception's class and message, whatever its ``__str__`` does."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} without a message"


def error_line(error: BaseException) -> str:
    """An exception's class and the first line of its message, for errors of libraries that explain at length."""
    name, _, message = error_text(error).partition(": ")
    lines = message.strip().splitlines()
    return f"{name}: {lines[0][:300]}" if lines else name


def disk_error(path: Path, error: Exception) -> RunDirError:
    """Explain what a failed write means for the run."""
    return RunDirError(
        f"cannot write '{path}': {getattr(error, 'strerror', None) or error}",
        where=str(path.parent),
        fix="free some space or choose another --run-dir; the last complete checkpoint is kept",
    )
