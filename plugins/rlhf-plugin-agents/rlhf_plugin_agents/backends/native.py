"""A model of this process, sampled by the toolkit's own engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from rlhf_core.cli import load_sampler
from rlhf_core.config import Registry
from rlhf_core.models import Formatter, LoadedModel, ModelConfig, ModelError
from rlhf_core.rollouts import FinishReason, Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_agents.backends.base import BackendFault, ContextFull, ModelReply, ModelRequest
from rlhf_plugin_agents.backends.lockstep import LockStep
from rlhf_plugin_episodes.tool_spec import tool_spec

PROBE = tool_spec("probe", "Probes the template.", text="string")


_LOADED: dict[str, tuple[LoadedModel, Any]] = {}


def sampler_of(key: str, registry: Registry, model: ModelConfig) -> tuple[LoadedModel, Any]:
    """A model and its engine; kept until another is asked for, so that several suites in one command load it once."""
    if key not in _LOADED:
        _LOADED.clear()
        _LOADED[key] = load_sampler(registry, model)
    return _LOADED[key]


@dataclass(frozen=True)
class _Encoded:
    request: RolloutRequest
    temperature: float


class NativeBackend:
    """Samples the replies of plays side by side; ``version`` is the policy's where it is being trained."""

    name = "native"
    workers = 16
    """Plays at a time that are worth it: a decoding step of a small model hardly takes longer for all of them."""

    def __init__(self, policy: LoadedModel, engine: Any, prompt_format: str = "auto", version: int = 0) -> None:
        self.formatter = Formatter(policy.tokenizer, prompt_format)
        self.engine, self.context, self.version = engine, policy.context, version
        self.plays = LockStep(self._sample)
        self._formats = Lock()
        try:
            self.formatter.encode([{"role": "user", "content": "?"}], [PROBE])
            self.takes_tools = True
        except ModelError:
            self.takes_tools = False

    def complete(self, request: ModelRequest) -> ModelReply:
        with self._formats:
            ids = self.formatter.encode(request.messages, request.tools)
        limit = min(request.max_tokens, self.context - len(ids))
        if limit < 1:
            raise ContextFull(f"{len(ids)} tokens, and the model reads {self.context}")
        rollout_request = RolloutRequest(request.key, ids, 0, request.seed, limit)
        rollout = self.plays.ask(_Encoded(rollout_request, request.temperature))
        if rollout.finish_reason is FinishReason.ERROR:
            raise BackendFault(f"task '{request.key}': the engine returned an error")
        cut = rollout.finish_reason is FinishReason.LENGTH
        made = sum(len(m.get("tool_calls") or ()) for m in request.messages)
        with self._formats:
            turn = self.formatter.parse(rollout.completion_ids, request.tools, cut=cut, earlier=made)
        errors = [{"id": c.id, "name": c.name, "error": c.error} for c in turn.calls if not c.ok]
        return ModelReply(turn.message, len(ids), len(rollout.completion_ids), errors=errors)

    def _sample(self, encoded: Sequence[_Encoded]) -> list[Rollout]:
        """One call of the engine for each temperature; rows in an order that no thread decides."""
        order = sorted(range(len(encoded)), key=lambda i: (encoded[i].request.prompt_id, encoded[i].request.seed))
        rollouts: dict[int, Rollout] = {}
        for temperature in sorted({one.temperature for one in encoded}):
            rows = [i for i in order if encoded[i].temperature == temperature]
            requests = [encoded[i].request for i in rows]
            most = max(r.max_tokens or 1 for r in requests)
            sampling = SamplingParams(max_tokens=most, temperature=temperature)
            rollouts |= dict(zip(rows, self.engine.generate(requests, sampling, self.version), strict=True))
        return [rollouts[i] for i in range(len(encoded))]

    def close(self) -> None:
        """The engine belongs to whoever made it."""
