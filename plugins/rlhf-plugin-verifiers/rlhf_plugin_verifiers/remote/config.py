"""Settings of the reward ``remote``."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.remote.client import RemoteReward


class RemoteConfig(ComponentConfig):
    """Scores of a server that `rlhf reward serve` runs. What it does not answer in time, or not for every completion,
    has no score. The server's token comes from the environment variable ``RLHF_REWARD_TOKEN``."""

    name: str = "remote"
    url: str
    """Where the server is, such as ``http://127.0.0.1:8080``; it prints it."""
    version: str | None = None
    """The reward's version, as the server prints it; None takes what the server has when the run begins. A run goes on
    with no other."""
    batch_size: int = Field(default=64, ge=1)
    """Completions of one request. Those of one prompt stay together."""
    max_concurrent: int = Field(default=4, ge=1)
    """Requests at a time."""
    deadline_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Seconds for one request, its retries included."""
    retries: int = Field(default=3, ge=0)
    """Further attempts where nobody answers, or with an error of the server's (5xx)."""
    retry_wait_s: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Seconds before the first further attempt; doubled for each."""

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"reward.url '{value}' is not an address of a server", fix="for example http://127.0.0.1:8080"
            )
        return value.rstrip("/")

    def preflight(self, ctx: BuildContext) -> None:
        """Ask the server who it is."""
        from rlhf_plugin_verifiers.remote.client import RemoteReward

        RemoteReward(self).check_server()

    def build(self, ctx: BuildContext) -> RemoteReward:
        from rlhf_plugin_verifiers.remote.client import RemoteReward

        reward = RemoteReward(self)
        reward.check_server()
        return reward
