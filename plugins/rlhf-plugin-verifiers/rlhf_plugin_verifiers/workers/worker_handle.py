"""The trainer's handle on one worker process: start, call with a deadline, kill with all its descendants."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config import RlhfError
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_verifiers.workers.codec import pack, sample_to_json, score_from_json
from rlhf_plugin_verifiers.workers.killable import (
    EXIT_GRACE_S,
    KillableProcess,
    descendants,
    receive,
    send,
    sigkill,
)

if TYPE_CHECKING:
    from rlhf_core.config import ComponentConfig, Registry

BUSY = 0.1
"""Share of its deadline, and at least so many seconds, that a verifier has computed where the completion made it late,
and not a machine that had no time for it."""


def worker_spec(
    kind: str, chosen: ComponentConfig, registry: Registry, run_dir: Path | None = None, memory_mb: int | None = None
) -> dict[str, Any]:
    """What a worker needs to find and build the same component; ``memory_mb`` bounds its address space."""
    return {
        "component": registry.selected(kind, chosen).describe(),
        "config": chosen.model_dump(mode="json"),
        "secrets": list(getattr(chosen, "secrets", ())),
        "only_core": registry.only_core,
        "disabled": sorted(registry.disabled),
        "memory_mb": memory_mb,
        "run_dir": None if run_dir is None else str(run_dir),
    }


class WorkerProcess:
    """One verifier in one killable process. Used by one thread at a time.

    The process that imports and builds the verifier forks the one that answers, where it can (``worker.forks_safely``):
    a call that must be killed, or that crashes, then costs the next one a fork and not the imports.

    ``spec`` is what the worker builds (:func:`worker_spec`); of secrets it gets those named (:func:`without_secrets`).
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        start_timeout_s: float,
        recycle_after_calls: int | None = None,
        recycle_above_mb: int | None = None,
    ) -> None:
        self.recycle_after_calls, self.recycle_above_mb = recycle_after_calls, recycle_above_mb
        self.spec, self.start_timeout_s = dict(spec), start_timeout_s
        self.name = str(spec["component"]["name"])
        made_by = " ".join(str(spec["component"].get(k, "")) for k in ("distribution", "version")).strip()
        self.kind = str(spec["component"]["kind"])
        self.label = f"{self.kind} '{self.name}'" + (f" ({made_by})" if made_by else "")
        self.process: KillableProcess | None = None
        self.starts = self.recycled = self.lost = 0
        self.closed = False
        self.pid = 0
        """The process that answers; that of :attr:`process`, or its child."""
        self._channel: socket.socket | None = None
        self._calls = self._fresh = self._heard = 0
        self._worked = 0.0
        """Processor seconds of the process that was last too late."""

    def start(self) -> None:
        """Start the process and wait until its verifier is built."""
        if self.closed:
            raise RuntimeError(f"the pool of {self.label} is closed")
        process = KillableProcess.worker(self.label, "rlhf_plugin_verifiers.workers.worker", self.spec)
        self.process = process
        try:
            self._adopt(process, *process.ready(self.spec, self.start_timeout_s))
        except BaseException:
            self.kill()
            raise

    def _adopt(self, process: KillableProcess, announced: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Call the process that is ready: the worker itself, or one that it forked, whose channel comes along."""
        self.pid, self._fresh, self._heard = int(announced["ready"]), self._calls, process.written()
        self._channel = socket.socket(fileno=descriptors[0]) if descriptors else process.control
        self.starts += 1

    @property
    def _forked(self) -> bool:
        return self.process is not None and self.pid != self.process.pid

    def call(self, sample: Sample, timeout_s: float) -> Score:
        """Return the verdict; status ``timeout`` or ``error`` when there is none. The next call finds a live worker.

        A verifier that has computed until its deadline on a completion, but judges the reference answer in time, has
        judged: what the policy wrote kept it from an answer, and is wrong.
        """
        worked_before, starts = processor_s(self.pid), self.starts
        score = self._call(sample, timeout_s)
        worked = self._worked - (worked_before if self.starts == starts else 0.0)
        if score.status is not ScoreStatus.TIMEOUT or self.kind != "verifier" or worked < BUSY * max(1.0, timeout_s):
            return score
        reference = self._call(replace(sample, completion=sample.prompt.answer or ""), timeout_s)
        if not reference.ok:
            return score
        parts = dict.fromkeys(reference.parts, 0.0)
        return Score(0.0, parts, detail=f"wrong: {score.detail}, all of it spent on this completion")

    def _call(self, sample: Sample, timeout_s: float) -> Score:
        try:
            process = self.process
            if process is None:
                self.start()
            elif self._channel is None:
                self._renew(process)
            self._calls += 1
            request = pack({"call": self._calls, "sample": sample_to_json(sample)})
        except (RlhfError, RuntimeError, OSError, TypeError, ValueError) as error:
            return Score.failed(ScoreStatus.ERROR, f"{type(error).__name__}: {error}")
        try:
            score = self._ask(request, time.monotonic() + timeout_s)
            self._recycle()
            return score
        except TimeoutError:
            self.lost += 1
            self._worked = processor_s(self.pid)
            self.drop()
            late = f"{self.label} gave no verdict on {sample.prompt.id} in {timeout_s:g} s"
            return Score.failed(ScoreStatus.TIMEOUT, late)
        except OSError:
            self.lost += 1
            what = f"{self.label} died on {sample.prompt.id}: {self._last_words()}"
            return Score.failed(ScoreStatus.ERROR, what)
        except (ValueError, KeyError, TypeError) as error:
            self.lost += 1
            self.drop()
            return Score.failed(ScoreStatus.ERROR, f"{self.label} sent no readable verdict: {error}")

    def _ask(self, request: bytes, deadline: float) -> Score:
        assert self._channel is not None
        send(self._channel, request, deadline)
        reply, _ = receive(self._channel, deadline)
        if reply["call"] != self._calls:
            raise ValueError(f"answer to call {reply['call']}, expected {self._calls}")
        return score_from_json(reply["score"])

    def _recycle(self) -> None:
        """Replace a worker though it answers, where that is asked for: libraries leak, and caches grow."""
        most, above_mb = self.recycle_after_calls, self.recycle_above_mb
        made_enough = most is not None and self._calls - self._fresh >= most
        if self.process is not None and (made_enough or (above_mb is not None and resident_mb(self.pid) > above_mb)):
            self.recycled += 1
            self.drop()

    def _renew(self, process: KillableProcess) -> int | None:
        """Take the process forked in place of the last one and return how that one ended, or start from nothing."""
        try:
            announced, descriptors = process.announced(time.monotonic() + EXIT_GRACE_S)
            if "ready" not in announced or not descriptors:
                raise ValueError("the worker announced a process without its channel")
            self._adopt(process, announced, descriptors)
            return announced.get("ended")
        except (OSError, ValueError):
            self.kill()
            self.start()
            return None

    def _last_words(self) -> str:
        """How the process that answers ended, and what it wrote; the next call finds another one."""
        process, start = self.process, self._heard
        if process is None:
            return "the pool was closed"
        if not self._forked:
            words = process.last_words(process.exit_code(), start)
            self.kill()
            return f"it {words}"
        self.drop()
        code = None
        with contextlib.suppress(RlhfError, RuntimeError, OSError):  # the next call tries again, and says so
            code = self._renew(process)
        return f"it {process.last_words(code, start)}"

    def drop(self) -> None:
        """SIGKILL the process that answers and everything below it; the one that forked it starts another."""
        if self.process is None or not self._forked:
            return self.kill()
        if self.pid in descendants(self.process.pid):
            sigkill((*descendants(self.pid), self.pid))
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        return None

    def kill(self) -> None:
        """SIGKILL the worker and everything it started, and reap it; idempotent."""
        process, self.process = self.process, None
        if process is None:
            return
        channel, self._channel, self.pid = self._channel, None, 0
        try:
            process.kill()
        finally:
            if channel is not None:
                channel.close()


def resident_mb(pid: int) -> float:
    """Resident memory of a process; 0 where there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError, IndexError):
        return 0.0


def processor_s(pid: int) -> float:
    """Seconds that a process has computed; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
