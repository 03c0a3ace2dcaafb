"""Settings of the agent that plays episodes of several turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import ComponentConfig

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_plugin_episodes.program import Conversation


class EpisodeSettings(ComponentConfig):
    """What every agent has that plays in a run's environment."""

    plays_environment: ClassVar[bool] = True
    max_result_characters: int = Field(8000, ge=1)
    """A longer result is cut, and the policy is told so."""
    call_timeout_s: float = Field(10.0, gt=0)
    """Seconds for one answer of the environment; a late one is killed with all that it started."""
    setup_timeout_s: float = Field(30.0, gt=0)
    """Seconds for ``reset``."""
    episode_timeout_s: float = Field(300.0, gt=0)
    """Seconds that the environment may take in one episode, all calls together."""
    start_timeout_s: float = Field(60.0, gt=0)
    """Seconds to import and build the environment."""
    workers: int = Field(16, ge=1, le=1024)
    """Episodes whose environments work at the same time."""
    memory_mb: int | None = Field(4096, ge=64)
    """Address space of an episode's process (Linux); None lifts the limit."""

    @property
    def most_turn_tokens(self) -> int | None:
        """Most tokens of one turn; None leaves it the rest of the episode's budget."""
        return None

    def worthless(self, ended: str) -> bool:
        """Whether an episode that ended so is worth 0, whatever its environment says of its last turn."""
        return False

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a tool format that cannot be loaded: calls are read only after the first turn was sampled."""
        from rlhf_plugin_episodes.tool_calls import format_named

        name = getattr(getattr(ctx.config, "model", None), "tool_format", "auto")
        if name != "auto":
            format_named(name)


class EpisodeAgentConfig(EpisodeSettings):
    """Base of agents that are written as a program: :meth:`converse` plays one episode, asking the policy whatever it
    likes, in as many contexts as it likes, and calling tools as it likes.

    Programs of all episodes run side by side; what they ask is sampled together, once all of them wait or have ended,
    so that a run is repeatable bit for bit. See ``docs/episodes.md``.
    """

    component: ClassVar[str] = "rlhf_plugin_episodes.program:ProgramAgent.from_config"
    max_calls: ClassVar[int] = 1000
    """Most calls that a program makes at once."""
    program_timeout_s: float | None = Field(600.0, gt=0)
    """Seconds that a program may take for itself between two questions to policy or environment. One that takes longer
    gets a missing score and is left behind, for a thread cannot be stopped. None waits for ever."""

    def converse(self, talk: Conversation) -> str:
        """Play one episode in a thread of its own, and return why it ended, for people; ``info.ended`` of the trace."""
        raise NotImplementedError


class MultiTurnConfig(EpisodeSettings):
    """Plays episodes: the policy writes, its calls are answered by the run's environment, and it writes again.

    An episode ends with a turn without calls (its last answer), when the environment says so, after ``max_turns``, or
    when ``trainer.sampling.max_tokens`` is used up, which counts results too.
    """

    name: str = "multi_turn"
    component: ClassVar[str] = "rlhf_plugin_episodes.agent:MultiTurnAgent.from_config"
    max_turns: int = Field(8, ge=1)
    """Most turns of the policy. Calls in the last one are not made; a last turn without calls is still answered, but
    the policy does not read the answer."""
    max_turn_tokens: int | None = Field(None, ge=1)
    """Most tokens of one turn; None leaves it the rest of the episode's budget."""
    max_calls: int = Field(16, ge=1)
    """Most calls of one turn; the policy is told that the others were not made."""
    schedule: Literal["by_count", "as_ready"] = "by_count"
    """``by_count``: all that wait for the policy are sampled together, then all calls are answered; what is decoded
    with what depends on counts alone, so that a run is repeatable, bit for bit. ``as_ready``: whoever has its results
    is decoded, which hides slow tools, and is not exactly repeatable: what is decoded together depends on time, and
    with it the rounding. An engine without streams of turns samples ``by_count``."""

    @property
    def most_turn_tokens(self) -> int | None:
        return self.max_turn_tokens

    def conditions(self) -> Mapping[str, str]:
        if self.schedule == "by_count":
            return {}
        return {"schedule": "as_ready: not exactly repeatable, what is decoded together depends on time"}
