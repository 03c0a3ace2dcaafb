"""An environment whose calls take a while, some of them for ever, and a policy that writes a call in every turn."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

MODULE = """
import time
from typing import ClassVar
from rlhf_plugin_episodes.config import EnvironmentConfig
from rlhf_plugin_episodes.tool_spec import tool_spec

class LateConfig(EnvironmentConfig):
    name: str = "late"
    component: ClassVar[str] = "late_environment:Late"
    tool_specs: ClassVar = (tool_spec("wait", "Waits."),)
    pure: ClassVar[bool] = True
    stateless: ClassVar[bool] = True
    scores: ClassVar[bool] = False
    latency_s: float = 0.0
    hang_every: int = 0

class Late:
    def __init__(self, config): self.config = config
    def reset(self, prompt, seed): self.number = int(prompt.id)
    def step(self, calls):
        place = self.number + 11 * int(calls[0].id[4:])  # so that calls hang in every round
        if self.config.hang_every and place % self.config.hang_every == 7: time.sleep(600)
        time.sleep(self.config.latency_s)
        return ["1234"]
    def score(self, sample): return None
"""
ENTRIES = "[rlhf.environment]\nlate = late_environment:LateConfig\n"
CALL = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'


def agent_of(tokenizer: Any, agent: dict[str, Any], environment: dict[str, Any]) -> tuple[Any, Any]:
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.plugins.registry import Registry
    from rlhf_plugin_episodes.agent_config import MultiTurnConfig
    from rlhf_testing import make_context

    registry = Registry(disabled=())
    chosen: Any = registry.load("environment", "late").model_validate({"name": "late", **environment})
    config = SimpleNamespace(environment=chosen, model=ModelConfig())
    policy = SimpleNamespace(tokenizer=tokenizer, model=None, context=4096)
    context = make_context(registry=registry, config=config, policy=policy)
    return MultiTurnConfig.model_validate(agent).build(context), chosen.offered()


@contextmanager
def writes_calls(tokenizer: Any) -> Generator[int, None, None]:
    """Every turn that an engine samples inside is the call, token by token; gives the turn's length.

    The model runs and tokens are drawn as ever, so that a turn costs what it costs; then the drawn token is replaced.
    """
    import torch

    from rlhf_plugin_native import decode

    ids = [*tokenizer.encode(CALL, add_special_tokens=False), tokenizer.eos_token_id]
    script, draw, whole = torch.tensor(ids), decode.draw, decode.Decoder._draw
    positions: list[Any] = []

    def noting(self: Any) -> torch.Tensor:
        positions[:] = [torch.from_numpy(self.count.clip(max=len(ids) - 1))]
        return whole(self)

    def scripted(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        _, logprobs_B = draw(*arguments)
        return script[positions[0]], logprobs_B

    decode.draw, decode.Decoder._draw = scripted, noting
    try:
        yield len(ids)
    finally:
        decode.draw, decode.Decoder._draw = draw, whole
