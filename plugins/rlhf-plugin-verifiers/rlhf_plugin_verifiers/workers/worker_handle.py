"""The trainer's handle on one worker process: start, call with a deadline, kill with all its descendants."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config import PluginError, RlhfError
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_core.types.errors import DeadlineExceeded
from rlhf_plugin_verifiers.workers.codec import pack, sample_to_json, score_from_json

if TYPE_CHECKING:
    from rlhf_core.config import ComponentConfig, Registry

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rlhf_plugin_verifiers.workers.worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
"""Not ``multiprocessing``: that would import the trainer's main module, and with it torch, in every worker."""
SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|CREDENTIALS|PASS|PASSWD)$|PASSWORD$", re.IGNORECASE)
"""Names of variables that a worker does not inherit: it reads what a model wrote."""
BUSY = 0.1
"""Share of its deadline, and at least so many seconds, that a verifier has computed where the completion made it late,
and not a machine that had no time for it."""
EXIT_GRACE_S = 5.0
"""A SIGKILLed process is gone within milliseconds; after this long an error says that it is not."""


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
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = self.recycled = self.lost = 0
        self.closed = False
        self.pid = 0
        """The process that answers; that of :attr:`process`, or its child."""
        self._channel: socket.socket | None = None
        self._calls = self._fresh = self._heard = 0
        self._buffer = b""
        self._worked = 0.0
        """Processor seconds of the process that was last too late."""

    def start(self) -> None:
        """Start the process and wait until its verifier is built."""
        if self.closed:
            raise RuntimeError(f"the pool of {self.label} is closed")
        ours, theirs = socket.socketpair()
        self._control, self._stderr = ours, tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-c", BOOT, json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
                env={**without_secrets(os.environ, self.spec.get("secrets", ())), "OMP_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + self.start_timeout_s
        try:
            self._control.settimeout(self.start_timeout_s)
            self._control.sendall(pack(self.spec))
            reply = self._adopt(deadline)
        except TimeoutError as error:
            self.kill()
            late = f"the worker of {self.label} was not ready after {self.start_timeout_s:g} s"
            raise DeadlineExceeded(late) from error
        except (OSError, ValueError) as error:
            why = self._last_words()
            self.kill()
            raise PluginError(f"the worker of {self.label} died while starting", why=why) from error
        if "ready" not in reply:
            self.kill()
            why = str(reply.get("failed"))
            raise PluginError(f"{self.label} cannot be built in a worker process", why=why)

    def _adopt(self, deadline: float) -> dict[str, Any]:
        """Read the next announcement: a process is ready, its channel comes along, and how the one before it ended."""
        data, descriptors = b"", list[int]()
        while not data.endswith(b"\n"):
            self._control.settimeout(max(deadline - time.monotonic(), 1e-3))
            chunk, received, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
            if not chunk:
                raise ConnectionResetError("the worker closed its channel")
            data, descriptors = data + chunk, descriptors + list(received)
        reply = json.loads(data)
        if not isinstance(reply, dict) or not ({"failed"} <= reply.keys() or isinstance(reply.get("ready"), int)):
            raise ValueError(f"the worker announced {str(reply)[:80]!r}, expected that it is ready")
        if "ready" in reply:
            self.pid, self._buffer, self._fresh = int(reply["ready"]), b"", self._calls
            self._heard = os.fstat(self._stderr.fileno()).st_size
            self._channel = socket.socket(fileno=descriptors[0]) if descriptors else self._control
            self.starts += 1
        return reply

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
            if self.process is None:
                self.start()
            elif self._channel is None:
                self._renew()
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
        self._send(request, deadline)
        reply = self._receive(deadline)
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

    def _renew(self) -> int | None:
        """Take the process forked in place of the last one and return how that one ended, or start from nothing."""
        try:
            reply = self._adopt(time.monotonic() + EXIT_GRACE_S)
            if self._channel in (None, self._control):
                raise ValueError("the worker announced a process without its channel")
            return reply.get("ended")
        except (OSError, ValueError):
            self.kill()
            self.start()
            return None

    def _send(self, data: bytes, deadline: float) -> None:
        assert self._channel is not None
        self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        self._channel.sendall(data)

    def _receive(self, deadline: float) -> dict[str, Any]:
        assert self._channel is not None
        while b"\n" not in self._buffer:
            self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
            data = self._channel.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the worker closed its channel")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        """How the worker ended, and what it wrote: the first line of a crash, else the last line."""
        if self.process is None:
            return "the pool was closed"
        output_start, output = self._heard, ""
        if self._forked:
            self.drop()
            code = None
            with contextlib.suppress(RlhfError, RuntimeError, OSError):  # the next call tries again, and says so
                code = self._renew()
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(EXIT_GRACE_S)
            code = self.process.returncode
        with contextlib.suppress(ValueError, OSError):
            output = os.pread(self._stderr.fileno(), 1 << 20, output_start).decode(errors="replace")
        lines = output.strip().splitlines()
        if not self._forked:
            self.kill()
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}" + (f": {lines[0]}" if lines else "")
        how = "closed its channel" if code is None else f"exit code {code}"
        return how + (f": {lines[-1]}" if lines else "")

    def drop(self) -> None:
        """SIGKILL the process that answers and everything below it; the one that forked it starts another."""
        if self.process is None or not self._forked:
            return self.kill()
        below = descendants(self.process.pid)
        if self.pid in below:
            for pid in (*descendants(self.pid), self.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        return None

    def kill(self) -> None:
        """SIGKILL the worker and everything it started, and reap it; idempotent."""
        if self.process is None:
            return
        process, self.process = self.process, None
        for pid in (*descendants(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for channel in (self._channel, self._control):
            if channel is not None:
                channel.close()
        self._channel, self.pid = None, 0
        self._stderr.close()
        try:
            process.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired as error:
            late = f"verifier worker {process.pid} still runs {EXIT_GRACE_S:g} s after SIGKILL"
            raise DeadlineExceeded(late) from error


def without_secrets(environment: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """The environment without keys, tokens and passwords, except those that a verifier names.

    Example:
        >>> without_secrets({"PATH": "/bin", "HF_TOKEN": "hf_1", "JUDGE_API_KEY": "k"}, keep=["JUDGE_API_KEY"])
        {'PATH': '/bin', 'JUDGE_API_KEY': 'k'}
    """
    return {name: value for name, value in environment.items() if name in keep or not SECRET.search(name)}


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


def parent_of(pid: int) -> int:
    """Parent's process id; 0 if there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def descendants(pid: int) -> list[int]:
    """Process ids below ``pid``, deepest last; empty where there is no /proc (the process group is killed anyway)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    pids, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        pids += below
        queue += below
    return pids
