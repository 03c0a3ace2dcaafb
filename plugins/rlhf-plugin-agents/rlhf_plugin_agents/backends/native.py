"""A model of this process, sampled by the toolkit's own engine."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from rlhf_core.api import FinishReason, ModelError, RolloutRequest, SamplingParams, tool_spec
from rlhf_core.sdk import Formatter
from rlhf_plugin_agents.backends.base import BackendFault, ContextFull, ModelReply, ModelRequest

if TYPE_CHECKING:
    from rlhf_core.sdk import LoadedModel

PROBE = tool_spec("probe", "Probes the template.", text="string")


class NativeBackend:
    """Samples one reply at a time.

    Args:
        policy: model and tokenizer.
        engine: any rollout engine.
        prompt_format: ``auto`` takes the tokenizer's chat template.
        version: of the policy, where it is being trained.
    """

    name = "native"

    def __init__(self, policy: LoadedModel, engine: Any, prompt_format: str = "auto", version: int = 0) -> None:
        self.formatter = Formatter(policy.tokenizer, prompt_format)
        self.engine, self.context, self.version = engine, policy.context, version
        self._lock = Lock()
        try:
            self.formatter.encode([{"role": "user", "content": "?"}], [PROBE])
            self.takes_tools = True
        except ModelError:
            self.takes_tools = False

    def complete(self, request: ModelRequest) -> ModelReply:
        """Sample a turn and read its calls.

        Raises:
            ContextFull: no token is left for the reply.
            BackendFault: the engine failed.
        """
        with self._lock:
            ids = self.formatter.encode(request.messages, request.tools)
            limit = min(request.max_tokens, self.context - len(ids))
            if limit < 1:
                raise ContextFull(f"{len(ids)} tokens, and the model reads {self.context}")
            sampling = SamplingParams(max_tokens=limit, temperature=request.temperature)
            rollout = self.engine.generate(
                [RolloutRequest(request.key, ids, 0, request.seed, limit)], sampling, self.version
            )[0]
            if rollout.finish_reason is FinishReason.ERROR:
                raise BackendFault(f"task '{request.key}': the engine returned an error")
            cut = rollout.finish_reason is FinishReason.LENGTH
            made = sum(len(m.get("tool_calls") or ()) for m in request.messages)
            turn = self.formatter.parse(rollout.completion_ids, request.tools, cut=cut, earlier=made)
        errors = [{"id": c.id, "name": c.name, "error": c.error} for c in turn.calls if not c.ok]
        return ModelReply(turn.message, len(ids), len(rollout.completion_ids), errors=errors)

    def close(self) -> None:
        """The engine belongs to whoever made it."""
