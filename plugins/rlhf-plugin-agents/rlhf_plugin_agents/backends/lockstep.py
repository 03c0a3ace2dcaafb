"""Requests of plays that run side by side, answered together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition
from typing import Generic, TypeVar

from rlhf_plugin_agents.backends.base import BackendFault

Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Waiting(Generic[Request, Answer]):
    request: Request
    answer: list[Answer] = field(default_factory=list[Answer])
    error: BaseException | None = None


class LockStep(Generic[Request, Answer]):
    """Waits until every play under way has asked, then answers all with one ``serve``, in one thread: what is batched
    depends on the plays alone, and only one thread holds the memory that a model needs."""

    def __init__(self, serve: Callable[[Sequence[Request]], Sequence[Answer]]) -> None:
        self._serve = serve
        self._server = ThreadPoolExecutor(1, "answers")
        self._changed = Condition()
        self._waiting: list[_Waiting[Request, Answer]] = []
        self._left, self._workers = 0, 1
        self._interrupted = False

    def begin(self, plays: int, workers: int) -> None:
        """So many plays follow, so many of them at a time; each is to call :meth:`end`."""
        with self._changed:
            self._left, self._workers, self._interrupted = plays, workers, False

    def end(self) -> None:
        with self._changed:
            self._left -= 1
            self._changed.notify_all()

    def interrupt(self) -> None:
        """Whoever waits, or asks later, gets no answer."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def ask(self, request: Request) -> Answer:
        """Wait for the others and return the answer; what ``serve`` raised, everyone who waited gets."""
        waiting = _Waiting[Request, Answer](request)
        with self._changed:
            self._waiting.append(waiting)
            while not waiting.answer and waiting.error is None:
                if self._interrupted:
                    raise BackendFault("interrupted")
                if len(self._waiting) >= min(self._workers, self._left):
                    self._answer_all()
                else:
                    self._changed.wait()
        if waiting.error is not None:
            raise waiting.error
        return waiting.answer[0]

    def _answer_all(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            answers = self._server.submit(self._serve, [w.request for w in batch]).result()
            for waiting, answer in zip(batch, answers, strict=True):
                waiting.answer.append(answer)
        except BaseException as error:
            for waiting in batch:
                waiting.error = error
        self._changed.notify_all()
