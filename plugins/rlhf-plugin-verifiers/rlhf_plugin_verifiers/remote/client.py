"""Asks a server of `rlhf reward serve`; what has no answer has a status, never a number."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_verifiers.remote import TOKEN
from rlhf_plugin_verifiers.workers.codec import pack, sample_to_json, score_from_json

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.remote.config import RemoteConfig

PROTOCOL = 1
"""Of requests and answers; a server with another one is refused."""
SHOWN = 200


class Failed(Exception):
    """A request without an answer that can be used."""

    def __init__(self, status: ScoreStatus, detail: str) -> None:
        self.status = status
        super().__init__(detail)


class RemoteReward:
    """See :class:`RemoteConfig`."""

    def __init__(self, config: RemoteConfig) -> None:
        self.config, self.version = config, config.version

    def check_server(self) -> None:
        """Ask what is served.

        Raises:
            ConfigError: nobody answers, another program does, or with another version than ``version``.
        """
        try:
            health = self._ask("/health", None)
        except Failed as error:
            raise ConfigError(
                f"reward server '{self.config.url}' does not answer",
                why=str(error),
                fix="start it with `rlhf reward serve`, and give the address that it prints as reward.url",
            ) from error
        if health.get("protocol") != PROTOCOL or not isinstance(health.get("version"), str):
            raise ConfigError(
                f"'{self.config.url}' is not a reward server of this version of rlhf", why=f"{health}"[:SHOWN]
            )
        if self.version not in (None, health["version"]):
            raise ConfigError(
                f"reward server '{self.config.url}' has version {health['version']}, not {self.version}",
                why=f"it serves {health.get('reward')}",
                fix="serve the reward that the run began with, or set reward.version in a new run",
            )
        self.version = health["version"]

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample, in order."""
        parts = cut(samples, self.config.batch_size)
        with ThreadPoolExecutor(self.config.max_concurrent) as pool:
            return [score for scores in pool.map(self._score_part, parts) for score in scores]

    def state_dict(self) -> dict[str, Any]:
        """The server's version: a run that resumes refuses another."""
        return {"version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.version = state["version"]
        self.check_server()

    def _score_part(self, samples: Sequence[Sample]) -> list[Score]:
        body = pack({"protocol": PROTOCOL, "samples": [sample_to_json(sample) for sample in samples]})
        try:
            answer = self._ask("/score", body)
            return self._read(answer, len(samples))
        except Failed as error:
            return [Score.failed(error.status, f"reward server '{self.config.url}': {error}")] * len(samples)

    def _read(self, answer: dict[str, Any], count: int) -> list[Score]:
        if answer.get("version") != self.version:
            raise Failed(ScoreStatus.ERROR, f"it now has version {answer.get('version')}, not {self.version}")
        rows = answer.get("scores")
        if not isinstance(rows, list) or len(rows) != count:
            sent = len(rows) if isinstance(rows, list) else "no"
            raise Failed(ScoreStatus.ERROR, f"it sent {sent} scores for {count} completions")
        try:
            return [score_from_json(row) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise Failed(ScoreStatus.ERROR, f"a score cannot be read: {type(error).__name__}: {error}") from error

    def _ask(self, path: str, body: bytes | None) -> dict[str, Any]:
        """The server's JSON answer, after as many attempts as there is time for."""
        end, wait = time.monotonic() + self.config.deadline_s, self.config.retry_wait_s
        for attempt in range(self.config.retries + 1):
            try:
                return self._attempt(path, body, max(end - time.monotonic(), 0.001))
            except Failed as error:
                left = end - time.monotonic()
                if error.status is ScoreStatus.ERROR or attempt == self.config.retries or left <= wait:
                    raise
            time.sleep(wait)
            wait *= 2
        raise AssertionError("the last attempt returned or raised")

    def _attempt(self, path: str, body: bytes | None, seconds: float) -> dict[str, Any]:
        """Raises ``Failed`` with status ``error`` for what a further attempt would not change."""
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get(TOKEN):
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.config.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as reply:
                answer = json.loads(reply.read())
        except urllib.error.HTTPError as error:
            status = ScoreStatus.MISSING if error.code >= 500 else ScoreStatus.ERROR
            raise Failed(status, f"it answered {error.code}: {text_of(error)}") from error
        except TimeoutError as error:
            raise Failed(ScoreStatus.TIMEOUT, f"no answer within {seconds:.3g} s") from error
        except OSError as error:  # refused, reset, no such host
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise Failed(ScoreStatus.TIMEOUT, f"no answer within {seconds:.3g} s") from error
            raise Failed(ScoreStatus.MISSING, f"it cannot be reached: {reason}") from error
        except Exception as error:  # an answer that was cut, or is not JSON
            raise Failed(ScoreStatus.MISSING, f"its answer cannot be read: {error}") from error
        if not isinstance(answer, dict):
            raise Failed(ScoreStatus.ERROR, f"it answered {str(answer)[:SHOWN]!r}")
        return answer


def text_of(error: urllib.error.HTTPError) -> str:
    """How an error's text begins, which may break off or never come."""
    try:
        return error.read(SHOWN).decode(errors="replace")
    except (OSError, HTTPException) as failure:
        return f"its text cannot be read: {failure}"


def cut(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Requests of at most ``size`` completions, in order; those of one prompt that stand together stay together."""
    parts: list[list[Sample]] = []
    for n, sample in enumerate(samples):
        same = n > 0 and samples[n - 1].prompt.id == sample.prompt.id
        if not parts or (len(parts[-1]) >= size and not same):
            parts.append([])
        parts[-1].append(sample)
    return parts
