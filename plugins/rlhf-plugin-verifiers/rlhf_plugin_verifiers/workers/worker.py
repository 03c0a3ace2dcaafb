"""The child process of a verifier pool: one verifier, one call at a time, killed from outside when late.

It is a fresh interpreter, not a fork of the trainer, so it holds no lock of the trainer's threads, and it imports no
torch unless the verifier does. Once the verifier is built, it forks the process that answers, and another one whenever
that ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

from rlhf_core.config import BuildContext, PluginError, Registry, RlhfError
from rlhf_core.plugins.component_calls import label_of, set_label
from rlhf_core.plugins.protocols import Verifier
from rlhf_core.plugins.registry import check_component
from rlhf_core.rewards import Score
from rlhf_plugin_verifiers.workers.codec import error_score, pack, sample_from_json, score_to_json
from rlhf_plugin_verifiers.workers.fork_server import ForkServer, forks_safely, tie_to_parent
from rlhf_plugin_verifiers.workers.pool import OneByOne

T = TypeVar("T")


def main(descriptor: int, parent: int) -> None:
    """Answer requests from the socket until it closes."""
    verifier, _, control = begin(descriptor, parent, build)
    if forks_safely():
        fork_servers(verifier, control)
    else:
        control.sendall(pack({"ready": os.getpid()}))
        serve(verifier, control)


def begin(
    descriptor: int, parent: int, build: Callable[[dict[str, Any]], T]
) -> tuple[T, dict[str, Any], socket.socket]:
    """Build what the trainer's spec names, or announce that this has failed and end; with the spec and the channel."""
    tie_to_parent(parent)
    faulthandler.enable()
    control = socket.socket(fileno=descriptor)
    with control.makefile("rb") as stream:
        spec = json.loads(stream.readline())
    limit_memory(spec["memory_mb"])
    try:
        return build(spec), spec, control
    except BaseException as error:
        control.sendall(pack({"failed": explain(error)}))
        sys.exit()


def fork_servers(verifier: Verifier, control: socket.socket) -> None:
    """Fork a process that answers; when it ends, for whatever reason, clean up behind it and fork the next."""
    server, ended = ForkServer(control, lambda channel: serve(verifier, channel)), None
    while True:
        theirs, ours = socket.socketpair()
        with theirs, ours:
            pid = server.fork(theirs, ours)
            socket.send_fds(control, [pack({"ready": pid, "ended": ended})], [theirs.fileno()])
        ended = server.end(pid)


def serve(verifier: Verifier, channel: socket.socket) -> None:
    """Answer every request. A process that the verifier forked and that comes back here ends at once."""
    owner = os.getpid()
    for line in lines_of(channel):
        request = json.loads(line)
        answer = judge(verifier, request["sample"])
        if os.getpid() != owner:
            os._exit(0)
        channel.sendall(pack({"call": request["call"], "score": answer}))


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


def build_planned(spec: dict[str, Any]) -> tuple[Any, Any]:
    """(Configuration, component) that the trainer planned, found among this process's own entry points."""
    config, registry = planned_config(spec)
    folder = None if spec.get("run_dir") is None else Path(spec["run_dir"])
    context = BuildContext(config=None, registry=registry, seed=0, run_dir=folder)  # pyright: ignore[reportArgumentType]
    built = config.build(context)
    check_component(spec["component"]["kind"], built, spec["component"]["name"])
    return config, built


def build(spec: dict[str, Any]) -> Verifier:
    """Build the verifier, or the reward, which is then asked as one."""
    _, built = build_planned(spec)
    kind, planned = spec["component"]["kind"], spec["component"]
    answers = built if kind == "verifier" else OneByOne(built)
    set_label(answers, f"{kind} '{planned['name']}' ({planned['distribution']} {planned['version']})")
    if kind == "verifier":
        return answers
    if holds_values(getattr(built, "state_dict", dict)()):
        raise PluginError(
            f"reward '{planned['name']}' has state, which a checkpoint does not store from a worker process",
            fix="--set trainer.reward_workers=0",
        )
    return answers


def holds_values(state: Any) -> bool:
    """Whether a component's state is more than empty containers."""
    if isinstance(state, dict | list | tuple):
        return any(map(holds_values, state.values() if isinstance(state, dict) else state))
    return True


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
