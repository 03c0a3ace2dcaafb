"""Settings of the agent that plays episodes of several turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlhf_core.config.base import ComponentConfig

if TYPE_CHECKING:
    from rlhf_core.context import BuildContext


class MultiTurnConfig(ComponentConfig):
    """Plays episodes: the policy writes, its calls are answered by the run's environment, and it writes again.

    An episode ends with a turn without calls (its last answer), when the environment says so, after ``max_turns``, or
    when ``trainer.sampling.max_tokens`` is used up, which counts results too.
    """

    name: str = "multi_turn"
    component: ClassVar[str] = "rlhf_core.environments.agent:MultiTurnAgent.from_config"
    plays_environment: ClassVar[bool] = True
    max_turns: int = Field(8, ge=1)
    """Most turns of the policy; the calls of the last are not made."""
    max_turn_tokens: int | None = Field(None, ge=1)
    """Most tokens of one turn; None leaves it the rest of the episode's budget."""
    max_calls: int = Field(16, ge=1)
    """Most calls of one turn; the policy is told that the others were not made."""
    max_result_characters: int = Field(8000, ge=1)
    """A longer result is cut, and the policy is told so."""
    schedule: Literal["by_count", "as_ready"] = "by_count"
    """``by_count``: all that wait for the policy are sampled together, then all calls are answered; what is decoded
    with what depends on counts alone, so that a run is repeatable, bit for bit. ``as_ready``: whoever has its results
    is decoded, which hides slow tools, and is not exactly repeatable: what is decoded together depends on time, and
    with it the rounding. An engine without streams of turns samples ``by_count``."""
    call_timeout_s: float = Field(10.0, gt=0)
    """Seconds for one answer of the environment; a late one is killed with all that it started."""
    setup_timeout_s: float = Field(30.0, gt=0)
    """Seconds for ``reset``."""
    episode_timeout_s: float = Field(300.0, gt=0)
    """Seconds that the environment may take in one episode, all calls together."""
    start_timeout_s: float = Field(60.0, gt=0)
    """Seconds to import and build the environment."""
    workers: int = Field(16, ge=1)
    """Episodes whose environments work at the same time."""
    memory_mb: int | None = Field(4096, ge=64)
    """Address space of an episode's process (Linux); None lifts the limit."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a tool format that cannot be loaded: calls are read only after the first turn was sampled."""
        from rlhf_core.toolcalls.choose import format_named

        name = getattr(getattr(ctx.config, "model", None), "tool_format", "auto")
        if name != "auto":
            format_named(name)

    def conditions(self) -> Mapping[str, str]:
        """Whether the plan can be repeated exactly."""
        if self.schedule == "by_count":
            return {}
        return {"schedule": "as_ready: not exactly repeatable, what is decoded together depends on time"}
