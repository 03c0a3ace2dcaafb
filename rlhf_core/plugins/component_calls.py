"""Guards around every call of a component: what one raises is named after it; what hangs is named and ended.

A thread looks at the clock; when a stage of the run is late, a signal makes the main thread raise wherever it is: in a
sleep, in a wait for a socket or a lock, in a loop. The signal also comes by processor time, for a regular expression
that never ends lets no other thread look at the clock. Code that answers no signal at all is ended with the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from rlhf_core.types.errors import ComponentError, DeadlineExceeded, RlhfError, StopRun, error_text

if TYPE_CHECKING:
    from rlhf_core.plugins.component import ComponentConfig, DeadlineSettings
    from rlhf_core.plugins.registry import Registry


LABEL = "_rlhf_label"
"""Attribute of a component that was built: how it is named to people."""


def set_label(component: object, label: str) -> None:
    """Keep on a component how it is named to people, so that whoever calls it can name it."""
    with contextlib.suppress(AttributeError, TypeError):  # one without attributes is named after its class
        object.__setattr__(component, LABEL, label)


def label_of(component: object, kind: str = "") -> str:
    """How a component that was built here is named, such as ``reward 'judge' (acme-judge 1.2)``; else by its class."""
    return getattr(component, "__dict__", {}).get(LABEL) or f"{kind} {type(component).__name__}".strip()


def label_for(kind: str, chosen: ComponentConfig, registry: Registry | None, role: str = "") -> str:
    """How the component that a Config builds is named to people."""
    label = f"{kind} '{chosen.name}'" + (f" of source '{role}'" if role else "")
    entry = None if registry is None else registry.entry_of(kind, chosen)
    return label if entry is None else f"{label} ({entry.distribution} {entry.version})"


@contextlib.contextmanager
def component_errors(label: str, method: str) -> Generator[None, None, None]:
    """Name the component that raises inside."""
    try:
        yield
    except (RlhfError, StopRun):
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ComponentError(
            f"{method} of {label} raised {error_text(error)}",
            where=f"{last.filename}:{last.lineno}, in {last.name}",
            fix="fix the plugin, or choose another; `rlhf --debug ...` and failure.json of the run show the traceback",
        ) from error


StageName = Literal["build", "rollout", "reward", "update", "evaluation", "checkpoint", "listener", "close"]
FRAMES = 30
"""Innermost calls that are shown."""
POLL_S = 0.25
GRACE_S = 30.0
"""After so long without an answer to the signal a process that only runs this run is ended."""
owns_process = False
"""Set by `rlhf` and by ranks. In somebody else's process, such as a notebook, the hang is only logged."""


class StageTimeout(BaseException):
    """Raised wherever the main thread is; no component's ``except Exception`` takes it for its own."""

    def __init__(self, stage: _Stage, stack: str) -> None:
        self.stage, self.stack = stage, stack
        super().__init__(stage.what)


@dataclass(eq=False)
class _Stage:
    name: StageName
    what: str
    limit_s: float
    ends: float
    raised: bool = False


class Watchdog:
    """Watches the stages of one run; at most one is active in a process."""

    def __init__(self, limits: DeadlineSettings, resume: str, end: Callable[[DeadlineExceeded], object]) -> None:
        self.limits, self.resume, self.end = limits, resume, end
        self.step = 0
        """Named in messages."""
        self._stages: list[_Stage] = []
        self._over = threading.Event()

    @contextlib.contextmanager
    def active(self) -> Generator[None, None, None]:
        """Watch while inside; elsewhere than in the main thread, or on a system without the signal, nothing is."""
        global _watchdog
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGPROF"):
            yield
            return
        outer, handler = _watchdog, signal.signal(signal.SIGPROF, self._on_signal)
        _watchdog, self._over = self, threading.Event()
        threading.Thread(target=self._watch, args=(self._over,), name="deadlines", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, handler)
            _watchdog = outer

    @contextlib.contextmanager
    def stage(self, name: StageName, what: str) -> Generator[None, None, None]:
        """Watch what is done inside."""
        limit_s = float(getattr(self.limits, f"{name}_s"))
        stage = _Stage(name, what, limit_s, time.monotonic() + limit_s)
        self._stages.append(stage)
        self._arm()
        try:
            yield
        except StageTimeout as late:
            if late.stage is stage:
                raise self._error(stage, late.stack) from late
            raise
        finally:
            self._stages.remove(stage)
            self._arm()

    def _arm(self) -> None:
        """The signal comes once this process has computed for as long as the next deadline is away."""
        next_end = min((s.ends for s in self._stages if not s.raised), default=None)
        away_s = 0.0 if next_end is None else max(next_end - time.monotonic(), 0.01)
        signal.setitimer(signal.ITIMER_PROF, away_s)

    def _late(self) -> _Stage | None:
        now = time.monotonic()
        return next((s for s in self._stages if now >= s.ends), None)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        late = self._late()
        if late is None or late.raised:  # several threads compute faster than the clock; or the stage has just ended
            self._arm()
            return
        late.raised = True
        raise StageTimeout(late, stack_of(frame))

    def _watch(self, over: threading.Event) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not over.wait(POLL_S):
            late = self._late()
            if late is None:
                continue
            if not late.raised:
                signal.pthread_kill(main, signal.SIGPROF)
            if time.monotonic() > late.ends + GRACE_S:
                error = self._error(late, stack_of(sys._current_frames().get(main)))
                self.end(error)
                print(f"error: {error}", file=sys.stderr, flush=True)
                if not owns_process:
                    return
                os._exit(1)

    @property
    def when(self) -> str:
        """The step, for messages."""
        return f"step {self.step}" if self.step else "before the first step"

    def _error(self, stage: _Stage, stack: str) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{self.when}: {stage.what} did not end within {stage.limit_s:g} s",
            why=f"it hangs at (innermost call last)\n{stack}",
            fix=f"find what hangs there, or raise trainer.deadlines.{stage.name}_s; {self.resume}",
        )


_watchdog: Watchdog | None = None
"""Process-wide, as signals are."""


def time_limit(name: StageName, what: str) -> contextlib.AbstractContextManager[Any]:
    """A stage of the run that is active in this process; nothing is watched without one, or in another thread."""
    if _watchdog is None or threading.current_thread() is not threading.main_thread():
        return contextlib.nullcontext()
    return _watchdog.stage(name, what)


def position() -> tuple[str, float]:
    """Where this process's run is, and for how many seconds; from any thread."""
    watchdog = _watchdog
    if watchdog is None:
        return "no stage of a run", 0.0
    when, stages = watchdog.when, list(watchdog._stages)
    if not stages:
        return f"{when}, between two stages", 0.0
    return f"{when}, {stages[-1].what}", max(0.0, time.monotonic() - stages[-1].ends + stages[-1].limit_s)


def stack_of(frame: FrameType | None) -> str:
    """Where a thread is now, innermost call last; empty if it has ended."""
    if frame is None:
        return ""
    rows = traceback.StackSummary.from_list(traceback.extract_stack(frame)[-FRAMES:]).format()
    return "".join(rows).rstrip("\n")
