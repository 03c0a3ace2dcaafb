"""The side of the tests, a process of its own: the program's names are proxies that send arguments and get plain data.
A proxy for anything else can be called, indexed, iterated, measured and asked for attributes, but not compared or
computed with, which would send the program the expected value."""

from __future__ import annotations

import builtins
import importlib
import itertools
import json
import os
import socket
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from rlhf_plugin_code.inside import values
from rlhf_plugin_code.inside.names import required_names, used

STOPS = ("StopIteration", "StopAsyncIteration")
"""End a loop in silence: ``all(map(f, cases))`` would hold. Raised in the tests only if they name one."""
PREDICATES = frozenset(n for t in (str, bytes, set, float) for n in dir(t) if n.startswith("is") or n.endswith("with"))
"""Methods of plain data that answer True or False. Tests that call one expect plain data: no object of the program may
answer for it."""
GO = b"\n"
"""Sent to the program's side once the tests are ready."""


class Gone(BaseException):
    """The program ended, or sent what is no answer. Not an Exception: no ``except`` clause of a test may swallow it."""


class Wrong(Exception):
    """The program raised something that is no built-in exception."""


class Remote:
    """Proxy for an object of the program."""

    def __init__(self, ask: Asker, number: int, kind: str) -> None:
        self.__dict__.update(_ask=ask, _number=number, _kind=kind)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._ask.call(self._number, args, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in PREDICATES:
            raise AttributeError(f"{self!r} has no {name}")
        return self._ask("attr", self._number, [name])

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", self._number, [key])

    def __len__(self) -> int:
        return self._ask("len", self._number, [])

    def __bool__(self) -> bool:
        return self._ask("bool", self._number, [])

    def __iter__(self) -> Iterator[Any]:
        iterator = self._ask("iter", self._number, [])
        while True:
            reply = self._ask.reply({"ask": "next", "of": iterator._number})
            if "end" in reply:
                return
            yield self._ask.rebuild(reply["value"])

    def __repr__(self) -> str:
        return f"<{self._kind} object of the program>"


class Asker:
    """The line to the program. It waits as long as that lasts: who started both sees how much time the program had."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.buffer = b""
        self.stops = False
        self.functions: dict[int, Callable[..., Any]] = {}
        self.numbers = itertools.count()

    def __call__(self, what: str, of: int | None, args: Sequence[Any]) -> Any:
        return self.rebuild(self.reply({"ask": what, "of": of, "args": [self.describe(a) for a in args]})["value"])

    def call(self, of: int, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a function of the program; lists, dicts and sets among the arguments change as it changed them."""
        reply = self.reply(
            {
                "ask": "call",
                "of": of,
                "args": [self.describe(a) for a in args],
                "named": {k: self.describe(v) for k, v in named.items()},
            }
        )
        for argument, after in zip(args, reply.get("after", [])):
            if after is not None:
                change(argument, self.rebuild(after))
        return self.rebuild(reply["value"])

    def describe(self, value: Any) -> Any:
        """An argument as JSON; a function of the tests becomes a number that the program may call back."""
        return values.describe(value, self._register)

    def _register(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return {"o": value._number}
        if not callable(value):
            raise TypeError(f"a {type(value).__name__} cannot be handed to the program")
        number = next(self.numbers)
        self.functions[number] = value
        return {"fn": number}

    def rebuild(self, data: Any) -> Any:
        try:
            return values.rebuild(data, lambda d: Remote(self, int(d["o"][0]), str(d["o"][1])[:80]))
        except Exception as error:
            raise Gone(f"the program's answer cannot be read: {type(error).__name__}") from error

    def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a question and wait; meanwhile the program may call functions among its arguments."""
        self.send(request)
        while True:
            answer = self.receive()
            if "back" not in answer:
                return answer
            self.send(self._called_back(answer))

    def _called_back(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        try:
            function = self.functions[int(answer["back"])]
            return {"value": self.describe(function(*(self.rebuild(a) for a in answer["args"])))}
        except Exception as error:
            return {"raise": type(error).__name__, "args": [str(error)[:200]]}

    def send(self, message: Any) -> None:
        data = memoryview(values.pack(message))
        while data:
            try:
                data = data[self.channel.send(data, socket.MSG_NOSIGNAL) :]
            except OSError as error:
                raise Gone("the program ended") from error

    def receive(self) -> dict[str, Any]:
        """One line from the program, or what the program raised, as the same built-in exception."""
        chunks = [self.buffer]
        size = len(self.buffer)
        while b"\n" not in chunks[-1]:
            try:
                chunks.append(self.channel.recv(1 << 16))
            except OSError as error:
                raise Gone("the program ended") from error
            size += len(chunks[-1])
            if not chunks[-1]:
                raise Gone("the program ended")
            if size > values.MAX_BYTES:
                raise Gone(f"the program's answer has more than {values.MAX_BYTES >> 20} MiB")
        line, _, self.buffer = b"".join(chunks).partition(b"\n")
        try:
            answer = json.loads(line)
            exception_names = answer.get("raise")
        except Exception as error:
            raise Gone(f"the program's answer cannot be read: {type(error).__name__}") from error
        if exception_names is not None:
            again(exception_names, str(answer.get("text", "")), self.stops)
        return answer


def again(names: Any, text: str, stops: bool) -> NoReturn:
    """Raise here what was raised there: the nearest built-in exception; one of :data:`STOPS` only if ``stops``."""
    names = [str(n) for n in names] if isinstance(names, list) and names else ["Exception"]
    candidates = [getattr(builtins, n, None) for n in names if stops or n not in STOPS]
    cls = next((c for c in candidates if isinstance(c, type) and issubclass(c, Exception)), Wrong)
    try:
        error = cls(text if names[0] == cls.__name__ else f"{names[0]}: {text}")
    except Exception:  # UnicodeDecodeError and the like want more arguments
        error = Wrong(f"{names[0]}: {text}")
    raise error


def change(argument: Any, after: Any) -> None:
    """Make a container equal to what the program made of its copy."""
    if isinstance(argument, list | bytearray) and isinstance(after, type(argument)):
        argument[:] = after
    elif isinstance(argument, dict | set) and isinstance(after, type(argument)):
        argument.clear()
        argument.update(after)


def module(name: str) -> object:
    """A module for the tests; an empty one where it cannot be imported, as their own import then says."""
    try:
        return importlib.import_module(name)
    except Exception:
        return types.ModuleType(name)


def judge(job: Mapping[str, Any], descriptor: int, tell: Callable[[Any], None]) -> None:
    """Run the tests and send each verdict (``{"test": i, "ok": bool, "why": str}``), or first ``{"broken": str}``.
    ``job`` has ``setup``, ``tests`` and ``names`` (the program's entry points)."""
    warnings.filterwarnings("error", "NotImplemented")  # of answers that cannot be compared; an assert takes it as true
    ask = Asker(socket.socket(fileno=descriptor))
    scope: dict[str, Any] = {"__name__": "tests"}
    tests = job["tests"]
    try:
        compiled = [compile(t, f"test {i + 1}", "exec") for i, t in enumerate(tests)]
        exec(compile(job.get("setup", ""), "setup of the tests", "exec"), scope)
        sources = [job.get("setup", ""), *tests]
        names, modules = required_names(sources, job["names"], scope, module)
        scope |= {name: module(name) for name in modules}
        ask.stops = any(name in used(sources) for name in STOPS)
    except BaseException as error:
        tell({"broken": f"{type(error).__name__}: {error}"})
        return
    try:
        ask.channel.sendall(GO)
        ask.receive()
        missing = _bind(ask, names, scope)
    except BaseException as error:
        why = _say(error)
        for i in range(len(tests)):
            tell({"test": i, "ok": False, "why": why})
        return
    for i, code in enumerate(compiled):
        tell({"test": i, **_one(code, scope, missing)})


def _bind(ask: Asker, names: Sequence[str], scope: dict[str, Any]) -> list[str]:
    missing = []
    for name in names:
        try:
            scope[name] = ask("get", None, [name])
        except Exception:
            missing.append(name)
    if any(hasattr(builtins, name) for name in missing):  # a test must not fall back on Python's own function
        scope["__builtins__"] = {k: v for k, v in vars(builtins).items() if k not in missing}
    return missing


def _one(code: Any, scope: dict[str, Any], missing: Sequence[str]) -> dict[str, Any]:
    try:
        exec(code, scope)
    except BaseException as error:
        lacks = error.name if isinstance(error, NameError) else None
        hint = f" (the program has no {lacks})" if lacks in missing else ""
        return {"ok": False, "why": _say(error) + hint}
    return {"ok": True, "why": ""}


def _say(error: BaseException) -> str:
    if isinstance(error, Gone):
        return str(error)
    return f"{type(error).__name__}: {error}"[:300]


def teller(descriptor: int) -> Callable[[Any], None]:
    return lambda message: (os.write(descriptor, values.pack(message)), None)[1]
