"""The child process of a verifier pool: one verifier, one call at a time, killed from outside when late.

It is a fresh interpreter, not a fork of the trainer, so it holds no lock of the trainer's threads, and it imports no
torch unless the verifier does. Once the verifier is built, it forks the process that answers, and another one whenever
that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext, PluginError, Registry, RlhfError
from rlhf_core.plugins.component_calls import label_of, set_label
from rlhf_core.plugins.protocols import Verifier
from rlhf_core.plugins.registry import check_component
from rlhf_core.rewards import Score
from rlhf_plugin_verifiers.workers.codec import error_score, pack, sample_from_json, score_to_json
from rlhf_plugin_verifiers.workers.pool import OneByOne
from rlhf_plugin_verifiers.workers.worker_handle import descendants, parent_of

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(descriptor: int, parent: int) -> None:
    """Answer requests from the socket until it closes."""
    tie_to_parent(parent)
    faulthandler.enable()
    channel = socket.socket(fileno=descriptor)
    lines = lines_of(channel)
    spec = json.loads(next(lines))
    limit_memory(spec["memory_mb"])
    try:
        verifier = build(spec)
    except Exception as error:
        channel.sendall(pack({"failed": explain(error)}))
        return
    if forks_safely():
        lines.close()  # it holds the channel open, also in what is forked
        fork_servers(verifier, channel)
    else:
        channel.sendall(pack({"ready": os.getpid()}))
        serve(verifier, lines, channel.sendall)


def forks_safely() -> bool:
    """Whether this process may be forked: Linux, and no library has started a thread."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def fork_servers(verifier: Verifier, control: socket.socket) -> None:
    """Fork a process that answers; when it ends, for whatever reason, clean up behind it and fork the next.

    What building the verifier has started, such as a sandbox, belongs to this process and stays. The process that
    answers holds its own channel only: what it forks, or a stray write, cannot speak for this one.
    """
    gc.collect()
    gc.freeze()
    started_before, ended = set(children()), None
    while True:
        theirs, ours = socket.socketpair()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            theirs.close()
            control.close()
            tie_to_parent(parent)
            serve(verifier, lines_of(ours), ours.sendall)
            os._exit(0)
        ours.close()
        with theirs:
            socket.send_fds(control, [pack({"ready": pid, "ended": ended})], [theirs.fileno()])
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sweep(started_before)


def children() -> list[int]:
    """Direct children of this process."""
    below = descendants(os.getpid())
    return [pid for pid in below if parent_of(pid) == os.getpid()]


def sweep(keep: set[int]) -> None:
    """Kill what a process has left behind, which came to this one; leave what was there before."""
    while left := [pid for pid in children() if pid not in keep]:
        for pid in left:
            for each in (*descendants(pid), pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def serve(verifier: Verifier, lines: Iterator[bytes], send: Callable[[bytes], object]) -> None:
    """Answer every request. A process that the verifier forked and that comes back here ends at once."""
    owner = os.getpid()
    for line in lines:
        request = json.loads(line)
        answer = judge(verifier, request["sample"])
        if os.getpid() != owner:
            os._exit(0)
        send(pack({"call": request["call"], "score": answer}))


def judge(verifier: Verifier, sample: dict[str, Any]) -> dict[str, Any]:
    """One verdict; whatever the verifier raises, ``SystemExit`` included, is status ``error``."""
    try:
        score = verifier.verify(sample_from_json(sample))
        if not isinstance(score, Score):
            return error_score(f"{label_of(verifier)} returned {score!r:.80}, expected a Score")
        return score_to_json(score)
    except BaseException as error:
        return error_score(f"{label_of(verifier)} raised {type(error).__name__}: {error}")


def planned_config(spec: dict[str, Any]) -> tuple[Any, Registry]:
    """(Configuration, registry) of the component that the trainer planned, from this process's own entry points."""
    registry = Registry(only_core=spec["only_core"], disabled=spec["disabled"])
    planned = spec["component"]
    kind, name = planned["kind"], f"{planned['distribution']}/{planned['name']}"
    here = registry.find(kind, name).describe()
    if here != planned:
        raise PluginError(
            f"{kind} '{planned['name']}' differs between the trainer and its worker",
            why=f"planned {planned}, found {here}",
            fix="do not change installed packages during a run",
        )
    cls = registry.load(kind, name)
    return cls.model_validate(spec["config"], context={"registry": registry}), registry


def build(spec: dict[str, Any]) -> Verifier:
    """Find the verifier (or reward) among this process's own entry points, and build it from its config."""
    config, registry = planned_config(spec)
    kind, planned = spec["component"]["kind"], spec["component"]
    folder = None if spec.get("run_dir") is None else Path(spec["run_dir"])
    context = BuildContext(config=None, registry=registry, seed=0, run_dir=folder)  # pyright: ignore[reportArgumentType]
    built = config.build(context)
    check_component(kind, built, planned["name"])
    answers = built if kind == "verifier" else OneByOne(built)
    set_label(answers, f"{kind} '{planned['name']}' ({planned['distribution']} {planned['version']})")
    if kind == "verifier":
        return answers
    if _holds_values(getattr(built, "state_dict", dict)()):
        raise PluginError(
            f"reward '{planned['name']}' has state, which a checkpoint does not store from a worker process",
            fix="--set trainer.reward_workers=0",
        )
    return answers


def _holds_values(state: Any) -> bool:
    """Whether a component's state is more than empty containers."""
    if isinstance(state, dict | list | tuple):
        return any(map(_holds_values, state.values() if isinstance(state, dict) else state))
    return True


def tie_to_parent(parent: int) -> None:
    """On Linux: die with the trainer, and adopt what the verifier's own children leave behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def limit_memory(megabytes: int | None) -> None:
    """Cap the address space, so that a runaway call gets ``MemoryError`` and not the whole machine."""
    if megabytes is None or sys.platform != "linux":
        return
    import resource

    size = megabytes << 20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def lines_of(channel: socket.socket) -> Generator[bytes]:
    """What comes in, line by line, until the channel closes."""
    with channel.makefile("rb") as stream:
        yield from iter(stream.readline, b"")


def explain(error: BaseException) -> str:
    """An exception in one line; of ours, what it says."""
    return str(error) if isinstance(error, RlhfError) else f"{type(error).__name__}: {error}"
