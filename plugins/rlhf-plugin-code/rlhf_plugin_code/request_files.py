"""Descriptors that one request hands to the zygote: files in memory, and the line between a program and its tests."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Part:
    """One process of a request: a role, and the descriptors that it gets as 0, 1, 2 and so on."""

    role: str
    descriptors: tuple[int, ...]


@dataclass(slots=True)
class RequestFiles:
    opened: list[int] = field(default_factory=list)
    lines: tuple[int, ...] = ()

    def new(self, content: bytes = b"") -> int:
        self.opened.append(os.memfd_create("sandbox"))
        view = memoryview(content)
        while view:
            view = view[os.write(self.opened[-1], view) :]
        os.lseek(self.opened[-1], 0, os.SEEK_SET)
        return self.opened[-1]

    def null(self) -> int:
        self.opened.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        return self.opened[-1]

    def pair(self) -> tuple[int, int]:
        self.lines = tuple(end.detach() for end in socket.socketpair())
        return self.lines[0], self.lines[1]

    def hand_over(self) -> None:
        """Close our copies of lines: who waits at one end must notice when the other end is gone."""
        for descriptor in self.lines:
            os.close(descriptor)
        self.lines = ()

    def close(self) -> None:
        self.hand_over()
        for descriptor in self.opened:
            os.close(descriptor)


def read(descriptor: int, most: int) -> bytes:
    """The first bytes of a memory file."""
    return os.pread(descriptor, most, 0)


def encode(text: str) -> bytes:
    """UTF-8; lone surrogates, which a model can write, survive."""
    return text.encode("utf-8", "surrogatepass")
