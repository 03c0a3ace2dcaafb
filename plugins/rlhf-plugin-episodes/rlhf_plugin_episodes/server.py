"""The processes of environments: one that builds the environment (without torch unless it imports torch), and one
forked from it, or started where a library has threads, for every episode."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext, PluginError
from rlhf_core.plugins.registry import check_component
from rlhf_plugin_episodes.serve import serve
from rlhf_plugin_verifiers.workers import (
    children,
    descendants,
    explain,
    forks_safely,
    limit_memory,
    lines_of,
    pack,
    planned_config,
    tie_to_parent,
)

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rlhf_plugin_episodes.server import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


def main(descriptor: int, parent: int) -> None:
    """Build the environment; then fork a process per request, or (``alone``) be the process of one episode."""
    tie_to_parent(parent)
    faulthandler.enable()
    control = socket.socket(fileno=descriptor)
    with control.makefile("rb") as stream:
        spec = json.loads(stream.readline())
    limit_memory(spec["memory_mb"])
    try:
        environment = build(spec)
    except BaseException as error:
        control.sendall(pack({"failed": explain(error)}))
        return
    control.sendall(pack({"ready": os.getpid()}))
    if spec.get("alone"):
        serve(environment, spec, lines_of(control), control.sendall)
        os._exit(0)
    EpisodeServer(environment, spec, control).run()


def build(spec: dict[str, Any]) -> Any:
    config, registry = planned_config(spec)
    folder = None if spec.get("run_dir") is None else Path(spec["run_dir"])
    context = BuildContext(config=None, registry=registry, seed=0, run_dir=folder)  # pyright: ignore[reportArgumentType]
    environment = config.build(context)
    name = spec["component"]["name"]
    check_component("environment", environment, name)
    if not (getattr(config, "pure", False) or hasattr(environment, "state_dict")):
        raise PluginError(
            f"environment '{name}' could not be resumed without making its calls twice",
            why="its Config is not pure, and it has no state_dict() and load_state_dict()",
            fix="pure: ClassVar[bool] = True if step() changes nothing outside of the object; else write both methods",
        )
    return environment


class EpisodeServer:
    """Forks the processes of episodes, each with its own copy of the environment, and reaps what is left of them."""

    def __init__(self, environment: Any, spec: dict[str, Any], control: socket.socket) -> None:
        self.environment, self.spec, self.control = environment, spec, control
        self.live: set[int] = set()
        self.started_before = set(children())
        self.codes: dict[int, int] = {}
        self.forks = forks_safely()

    def run(self) -> None:
        gc.collect()
        gc.freeze()
        buffer = b""
        while True:
            readable, _, _ = select.select([self.control], [], [], 1.0)
            if self.reap():
                self.sweep()
            if not readable:
                continue
            data = self.control.recv(1 << 16)
            if not data:
                return
            buffer += data
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                self.answer(json.loads(line))

    def answer(self, request: dict[str, Any]) -> None:
        """``open`` an episode's process, or say how one ended and kill what it left (``ended``)."""
        if "ended" in request:
            pid = int(request["ended"])
            if pid in self.live:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    self.note(*os.waitpid(pid, 0))
            self.sweep()
            self.control.sendall(pack({"code": self.codes.pop(pid, None)}))
            return
        theirs, ours = socket.socketpair()
        with theirs, ours:
            pid = self.fork(theirs, ours) if self.forks else self.spawn(ours)
            self.live.add(pid)
            socket.send_fds(self.control, [pack({"pid": pid, "alone": not self.forks})], [theirs.fileno()])

    def fork(self, theirs: socket.socket, ours: socket.socket) -> int:
        parent, pid = os.getpid(), os.fork()
        if pid:
            return pid
        theirs.close()
        self.control.close()
        tie_to_parent(parent)
        serve(self.environment, self.spec, lines_of(ours), ours.sendall)
        os._exit(0)

    def spawn(self, ours: socket.socket) -> int:
        command = [sys.executable, "-c", BOOT, json.dumps(sys.path), str(ours.fileno()), str(os.getpid())]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(ours.fileno(),)).pid

    def reap(self) -> bool:
        """Note the processes that ended; return whether there were any, for what they left comes to this process."""
        any_ended = False
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self.note(*ended)
                any_ended = True
        return any_ended

    def note(self, pid: int, status: int) -> None:
        """Keep how an episode's process ended, until the trainer asks."""
        if pid in self.live:
            self.live.discard(pid)
            self.codes[pid] = os.waitstatus_to_exitcode(status)

    def sweep(self) -> None:
        """Kill what ended episodes have left behind, which came to this process."""
        for pid in [pid for pid in children() if pid not in self.live and pid not in self.started_before]:
            for each in (*descendants(pid), pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
        self.reap()
