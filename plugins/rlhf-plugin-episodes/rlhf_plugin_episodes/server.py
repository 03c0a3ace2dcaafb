"""The processes of environments: one that builds the environment (without torch unless it imports torch), and one
forked from it, or started where a library has threads, for every episode."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
from typing import Any

from rlhf_core.config import PluginError
from rlhf_plugin_episodes.serve import serve
from rlhf_plugin_verifiers.workers import (
    ForkServer,
    begin,
    build_planned,
    forks_safely,
    lines_of,
    pack,
    python_command,
    sigkill,
)


def main(descriptor: int, parent: int) -> None:
    """Build the environment; then fork a process per request, or (``alone``) be the process of one episode."""
    environment, spec, control = begin(descriptor, parent, build)
    control.sendall(pack({"ready": os.getpid()}))
    if spec.get("alone"):
        serve(environment, spec, lines_of(control), control.sendall)
        os._exit(0)
    EpisodeServer(environment, spec, control).run()


def build(spec: dict[str, Any]) -> Any:
    config, environment = build_planned(spec)
    if not (getattr(config, "pure", False) or hasattr(environment, "state_dict")):
        raise PluginError(
            f"environment '{spec['component']['name']}' could not be resumed without making its calls twice",
            why="its Config is not pure, and it has no state_dict() and load_state_dict()",
            fix="pure: ClassVar[bool] = True if step() changes nothing outside of the object; else write both methods",
        )
    return environment


class EpisodeServer:
    """Opens the processes of episodes, each with its own copy of the environment, and says how they ended."""

    def __init__(self, environment: Any, spec: dict[str, Any], control: socket.socket) -> None:
        self.control, self.forks = control, forks_safely()
        self.processes = ForkServer(control, lambda own: serve(environment, spec, lines_of(own), own.sendall))

    def run(self) -> None:
        buffer = b""
        while True:
            readable, _, _ = select.select([self.control], [], [], 1.0)
            self.processes.reap()
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
            sigkill({pid} & self.processes.live)
            self.control.sendall(pack({"code": self.processes.end(pid)}))
            return
        theirs, ours = socket.socketpair()
        with theirs, ours:
            pid = self.processes.fork(theirs, ours) if self.forks else self.spawn(ours)
            socket.send_fds(self.control, [pack({"pid": pid, "alone": not self.forks})], [theirs.fileno()])

    def spawn(self, ours: socket.socket) -> int:
        """Where forking is not safe: start the process of an episode anew."""
        command = python_command("rlhf_plugin_episodes.server", ours.fileno())
        pid = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(ours.fileno(),)).pid
        self.processes.live.add(pid)
        return pid
