"""Settings of ``faulty``, a tool round any other, and of faults as such."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from rlhf_core.config import BuildContext, Config, ConfigError, component
from rlhf_core.data import Tool
from rlhf_plugin_episodes.config import ToolConfig

if TYPE_CHECKING:
    from rlhf_plugin_agents.tools.faulty import Faults

ToolField = component("tool")


class FaultSettings(Config):
    """Which calls go wrong, and how."""

    error: float = Field(default=0.3, ge=0, le=1)
    """Share of calls that raise an error which another try may not meet."""
    empty: float = Field(default=0.0, ge=0, le=1)
    """Share that find nothing."""
    conflicting: float = Field(default=0.0, ge=0, le=1)
    """Share whose numbers are changed; a result without numbers is empty instead."""
    latency_s: float = Field(default=0.0, ge=0)
    """Each call takes from 0 to this many seconds longer."""
    in_a_row: int = Field(default=2, ge=1)
    """After so many faults of the same call the next one goes well."""
    seed: int = 0
    """Another one makes other calls go wrong."""

    @model_validator(mode="after")
    def _shares(self) -> FaultSettings:
        if self.error + self.empty + self.conflicting > 1:
            raise ConfigError(
                f"error {self.error:g}, empty {self.empty:g}, conflicting {self.conflicting:g} are shares of all calls",
                fix="choose numbers that add up to at most 1",
            )
        return self

    def build(self) -> Faults:
        from rlhf_plugin_agents.tools.faulty import Faults

        return Faults(**self.model_dump())


class FaultyConfig(ToolConfig):
    """Any tool with faults from a seed: errors, delays, empty results, results that contradict other ones."""

    name: str = "faulty"
    stateless: ClassVar[bool] = False
    tool: ToolField  # pyright: ignore[reportInvalidTypeForm]
    """The tool; it is offered as it is without faults."""
    faults: FaultSettings = Field(default_factory=FaultSettings)
    """Which of its calls go wrong."""

    @property
    def secrets(self) -> tuple[str, ...]:
        return self.tool.secrets

    def spec(self) -> Tool:
        return self.tool.spec()

    def preflight(self, ctx: BuildContext) -> None:
        self.tool.preflight(ctx)

    def build(self, ctx: BuildContext) -> Any:
        from rlhf_plugin_agents.tools.faulty import FaultyTool

        return FaultyTool(self.spec()["function"]["name"], self.tool.build(ctx), self.faults.build())
