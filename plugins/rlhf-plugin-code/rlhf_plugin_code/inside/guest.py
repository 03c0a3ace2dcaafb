"""The side of the program: loads it, then answers what the tests ask about its names. It knows neither the tests nor
what they expect; lies about answers are just other answers."""

from __future__ import annotations

import builtins
import itertools
import json
import os
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from rlhf_plugin_code.inside import values

NAME = "solution"


class SandboxedProgram:
    """Objects that the tests may refer to, by number; ``module`` has the program's own names."""

    def __init__(self, channel: socket.socket, module: types.ModuleType) -> None:
        self.channel, self.module = channel, module
        self.lines = channel.makefile("rb")
        self.objects: dict[int, Any] = {}
        self.numbers = itertools.count()

    def describe(self, value: Any) -> Any:
        """Plain data, or a number by which the tests may ask for more."""
        return values.describe(value, self._hold)

    def _hold(self, value: Any) -> Any:
        tolist = getattr(value, "tolist", None)
        if type(value).__module__ == "numpy" and callable(tolist):
            return values.describe(tolist(), self._hold)
        number = next(self.numbers)
        self.objects[number] = value
        return {"o": [number, type(value).__name__]}

    def find(self, data: Any) -> Any:
        """What the tests sent: plain data, one of our objects, or one of their functions."""
        return values.rebuild(data, self._by_reference)

    def _by_reference(self, data: Any) -> Any:
        if "o" in data:
            return self.objects[data["o"]]
        return self._callback(data["fn"])

    def _callback(self, number: int) -> Callable[..., Any]:
        def callback(*args: Any) -> Any:
            self.send({"back": number, "args": [self.describe(a) for a in args]})
            reply = json.loads(self.lines.readline())
            if "raise" in reply:
                raise getattr(builtins, reply["raise"], RuntimeError)(*reply["args"])
            return self.find(reply["value"])

        return callback

    def send(self, message: Any) -> None:
        self.channel.sendall(values.pack(message))

    def serve(self) -> None:
        for line in iter(self.lines.readline, b""):
            try:
                reply = self.answer(json.loads(line))
            except BaseException as error:
                reply = raised(error)
            self.send(reply)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One question: ``get`` a global, or ``call``, ``attr``, ``item``, ``len``, ``iter``, ``next``, ``bool``."""
        what, args = request["ask"], [self.find(a) for a in request.get("args", [])]
        if what == "get":
            return {"value": self.describe(getattr(self.module, args[0]))}
        target = self.objects[request["of"]]
        if what == "call":
            named = {name: self.find(value) for name, value in request.get("named", {}).items()}
            value = self.describe(target(*args, **named))
            return {"value": value, "after": [self.describe(a) if isinstance(a, MUTABLE) else None for a in args]}
        if what == "next":
            value = next(target, END)
            return {"end": True} if value is END else {"value": self.describe(value)}
        return {"value": self.describe(OPERATIONS[what](target, *args))}


MUTABLE = (list, dict, set, bytearray)
END = object()
OPERATIONS: dict[str, Callable[..., Any]] = {
    "attr": getattr,
    "item": lambda o, k: o[k],
    "len": len,
    "iter": iter,
    "bool": bool,
}


def raised(error: BaseException) -> dict[str, Any]:
    """An exception by name and text; classes stay where they are."""
    names = [c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"]
    return {"raise": [type(error).__name__, *names], "text": str(error)[:500]}


def load(code: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(code, f"{name}.py", "exec"), module.__dict__)
    return module


def answer_tests(job: dict[str, Any], descriptor: int, begin: Callable[[], None]) -> None:
    """Load the program in ``job["code"]`` once the tests are ready, and serve them behind the socket."""
    channel = socket.socket(fileno=descriptor)
    if not channel.recv(1):
        return
    begin()
    try:
        module = load(job["code"], NAME)
    except BaseException as error:
        channel.sendall(values.pack(raised(error)))
        raise
    guest = SandboxedProgram(channel, module)
    guest.send({"ready": True})
    guest.serve()


def run_script(job: dict[str, Any]) -> None:
    """Run a program as ``python solution.py``: standard input, arguments, ``__name__ == "__main__"``."""
    sys.argv = [f"{NAME}.py", *job.get("args", [])]
    load(job["code"], "__main__")


def finish(work: Callable[[], None]) -> int:
    """Run ``work`` as an interpreter runs its main module; returns the exit code."""
    code = 0
    try:
        work()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException as error:
        code = 1
        complain(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            code = code or 120
    return code & 0xFF


def complain(error: BaseException) -> None:
    import traceback

    try:
        lines = traceback.format_exception(error)
        os.write(2, "".join(line for line in lines if "rlhf_plugin_code" not in line).encode(errors="replace")[-4000:])
    except BaseException:
        os.write(2, type(error).__name__.encode())
