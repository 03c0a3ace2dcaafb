"""A teacher behind vLLM's completions API: the log-probabilities of its likeliest tokens at each token of a text."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx

from rlhf_core.config import RlhfError
from rlhf_core.models import ModelError
from rlhf_core.rollouts import EngineUnavailable
from rlhf_plugin_distill.teacher_config import TeacherSettings

KEY = "VLLM_API_KEY"
"""Environment variable with the key of servers that want one."""
TRIES, THREADS = 3, 16
TEXTS = ("What is 2 + 3?", "def f(x):\n    return x", "Größe: 5 µm 日本")
Likeliest = tuple[list[int], list[float]]
"""Token ids, and as many log-probabilities and, last, that of all other tokens together."""
Pieces = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Prompts and completions."""
Answer = TypeVar("Answer")


class BadAnswer(RlhfError):
    """A server understood and gave something else than was asked."""


class TeacherServer:
    """Asks one server; every request has a deadline and is made anew a few times."""

    def __init__(self, settings: TeacherSettings) -> None:
        self.settings, key = settings, os.environ.get(KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=settings.url, headers=headers, timeout=settings.timeout_s, trust_env=False)
        self.model = settings.served_model
        self.context = 1 << 30

    def check(self, tokenizer: Any) -> None:
        """Refuse a server that is not there, has another vocabulary, or gives too few log-probabilities."""
        url, top_k = self.settings.url, self.settings.top_k
        try:
            served = {row["id"]: row for row in self._call("GET", "/v1/models")["data"]}
            self.model = self.model or next(iter(served))
            if self.model not in served:
                raise BadAnswer(f"it serves {', '.join(served)}, not '{self.model}'")
            self.context = int(served[self.model].get("max_model_len") or self.context)
            for text in TEXTS:
                expected = list(tokenizer.encode(text, add_special_tokens=False))
                body = {"model": self.model, "prompt": text, "add_special_tokens": False}
                tokens = self._call("POST", "/tokenize", body)["tokens"]
                if tokens != expected:
                    raise BadAnswer(f"another vocabulary: {text!r} is {tokens[:8]} there, {expected[:8]} here")
            probe = list(tokenizer.encode(TEXTS[0], add_special_tokens=False))
            (self.likeliest if top_k else self.chosen)(probe[:1], probe[1:])
        except (EngineUnavailable, BadAnswer, KeyError, StopIteration, IndexError, TypeError, AttributeError) as error:
            needs = f" --max-logprobs {top_k}, of the student's tokenizer" if top_k else f", of '{self.settings.path}'"
            raise ModelError(
                f"the teacher's server at {url} cannot teach this student",
                why=f"{error}" if isinstance(error, RlhfError) else f"it does not answer as vLLM does ({error!r})",
                fix=f"vllm serve TEACHER{needs}; check the address",
            ) from error

    def likeliest(self, prompt: Sequence[int], completion: Sequence[int]) -> list[Likeliest]:
        """At each token of the completion the teacher's ``top_k`` likeliest tokens.

        Raises:
            BadAnswer: it gives fewer, or numbers that are none.
            EngineUnavailable: it does not answer.
        """
        with self._reading():
            return [self._best(row) for row in self._rows(prompt, completion)]

    def chosen(self, prompt: Sequence[int], completion: Sequence[int]) -> list[float]:
        """The log-probability of each token of the completion. It raises what :meth:`likeliest` does."""
        with self._reading():
            pairs = zip(completion, self._rows(prompt, completion), strict=True)
            values = [float((row or {})[str(token)]["logprob"]) for token, row in pairs]
        if not all(math.isfinite(one) and one < 0.01 for one in values):
            raise BadAnswer(f"{self.settings.url} gives log-probabilities that are none: {values[:4]}")
        return values

    def _rows(self, prompt: Sequence[int], completion: Sequence[int]) -> list[Any]:
        """At each token of the completion, its log-probability and those of the likeliest."""
        prompt_logprobs, tokens = self.settings.top_k, [*prompt, *completion]
        body = {"model": self.model, "prompt": tokens, "max_tokens": 1, "prompt_logprobs": prompt_logprobs}
        answer = self._call("POST", "/v1/completions", body)
        choice = answer["choices"][0]
        rows = (choice.get("prompt_logprobs") or answer.get("prompt_logprobs") or [])[len(prompt) :]
        if len(rows) != len(completion):
            raise BadAnswer(f"{self.settings.url} gives log-probabilities of {len(rows)} of {len(completion)} tokens")
        return rows

    def _best(self, row: Any) -> Likeliest:
        top_k, url = self.settings.top_k, self.settings.url
        pairs = [(-float(entry["logprob"]), int(token)) for token, entry in (row or {}).items()]
        if len(pairs) < top_k:
            raise BadAnswer(
                f"{url} gives {len(pairs)} log-probabilities for a token, not the {top_k} of trainer.teacher.top_k",
                fix=f"start it with --max-logprobs {top_k}, or lower trainer.teacher.top_k",
            )
        best = sorted(pairs)[:top_k]
        logprobs, total = [-one for one, _ in best], math.fsum(math.exp(-one) for one, _ in best)
        if not all(math.isfinite(one) for one in logprobs) or total > 1.01:
            raise BadAnswer(f"{url} gives log-probabilities that are none: {logprobs[:4]}, in total {total:g}")
        return [token for _, token in best], [*logprobs, math.log(max(1 - total, 1e-9))]

    @contextlib.contextmanager
    def _reading(self) -> Generator[None, None, None]:
        """A server that was good may be another one after a restart."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BadAnswer(f"{self.settings.url} gives log-probabilities that cannot be read ({error!r})") from error

    def at_once(self, ask: Callable[..., Answer], pieces: Pieces) -> list[Answer]:
        """:meth:`likeliest` or :meth:`chosen` of several texts, in order."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(lambda piece: ask(*piece), pieces))

    def _call(self, verb: str, path: str, body: Any = None) -> Any:
        why = ""
        for _ in range(TRIES):
            try:
                answer = self.http.request(verb, path, json=body)
            except httpx.HTTPError as error:
                why = f"{path}: {error or type(error).__name__}"
                continue
            if answer.status_code < 400:
                try:
                    return answer.json()
                except ValueError as error:
                    raise BadAnswer(
                        f"{self.settings.url}{path} answers what is not JSON: {answer.text[:200]!r}"
                    ) from error
            why = f"{path} answered {answer.status_code}: {answer.text[-500:]}"
            if answer.status_code < 500:
                raise BadAnswer(f"{self.settings.url}{why}")
        raise EngineUnavailable(
            f"the teacher's server at {self.settings.url} does not answer",
            why=why,
            fix="start it again, then go on: rlhf train --resume RUN",
        )

    def close(self) -> None:
        self.http.close()
