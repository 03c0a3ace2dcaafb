"""Turns of many episodes, sampled as they come, with keys and values kept between the turns of an episode."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.rollouts import Rollout, RolloutRequest
from rlhf_plugin_native.decode import SampledTokens
from rlhf_plugin_native.sampling import sampling_forwards
from rlhf_plugin_native.stream_decode import StreamDecoder

if TYPE_CHECKING:
    from rlhf_plugin_native.engine import NativeEngine


class NativeStream:
    """The native engine's :class:`~rlhf_core.plugins.protocols.TurnStream`, of weights that must not change."""

    def __init__(
        self, engine: NativeEngine, decoder: StreamDecoder, finish: Callable[[RolloutRequest, SampledTokens], Rollout]
    ) -> None:
        self.engine, self.decoder, self._finish = engine, decoder, finish
        self._new: list[tuple[Hashable, RolloutRequest]] = []
        self._under_way = 0
        self._contexts = ExitStack()
        self._contexts.enter_context(sampling_forwards(engine.model))

    @property
    def waiting(self) -> int:
        """Turns that were submitted and not taken."""
        return len(self._new) + self._under_way

    def submit(self, episode: Hashable, request: RolloutRequest) -> None:
        self.engine.check(request, self.decoder.sampling)
        self._new.append((episode, request))

    def take(self, steps: int | None = None) -> list[tuple[Hashable, Rollout]]:
        """Decode until a turn has ended, or for ``steps`` tokens; what has ended."""
        decoder = self.decoder
        # contexts of like length and equal prompts together, as in one call of the engine
        for name, request in sorted(self._new, key=lambda row: (len(row[1].prompt_ids), row[1].prompt_ids)):
            decoder.submit(name, request)
            self._under_way += 1
        self._new.clear()
        with torch.no_grad():
            ended = decoder.take(steps)
        self._under_way -= len(ended)
        return [(decoder.names[i], self._finish(decoder.requests[i], drawn)) for i, drawn in sorted(ended.items())]

    def forget(self, episode: Hashable) -> None:
        self.decoder.turn_cache.drop(episode)

    def figures(self) -> dict[str, Any]:
        """What was read, and what the kept keys and values took."""
        turns = self.decoder.turn_cache
        return {"tokens_read": self.decoder.tokens_read, "kept_bytes": turns.most_used, "not_kept": turns.refused}

    def close(self) -> None:
        """Let go of weights, keys and values; idempotent."""
        self._contexts.close()
        self.decoder.cache = self.decoder.rows = None
