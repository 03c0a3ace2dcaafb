"""Settings of ``web_search``. Nothing here opens a connection."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, ConfigError
from rlhf_plugin_episodes.config import ToolConfig

KEYS = {"brave": "BRAVE_API_KEY", "tavily": "TAVILY_API_KEY", "serper": "SERPER_API_KEY"}


class WebSearchConfig(ToolConfig):
    """Searches the web, by a service that wants a key."""

    name: str = "web_search"
    description: ClassVar[str] = "Searches the web. Returns titles, addresses and excerpts of pages."
    parameters: ClassVar[Mapping[str, Any]] = {"query": {"type": "string", "description": "Words to look for"}}
    service: Literal["brave", "tavily", "serper"] = "brave"
    """Who searches; its key is read from ``BRAVE_API_KEY``, ``TAVILY_API_KEY`` or ``SERPER_API_KEY``."""
    url: str | None = None
    """Another address of the same interface; None is the service's own."""
    results: int = Field(default=5, ge=1, le=20)
    """Pages of an answer."""
    timeout_s: float = Field(default=20.0, gt=0)
    """Seconds that an answer may take."""

    @property
    def secrets(self) -> tuple[str, ...]:
        return (KEYS[self.service],)

    def preflight(self, ctx: BuildContext) -> None:
        if not os.environ.get(KEYS[self.service], "").strip():
            raise ConfigError(
                f"tool 'web_search': there is no key for {self.service}", fix=f"export {KEYS[self.service]}=..."
            )

    def build(self, ctx: BuildContext) -> Any:
        from rlhf_plugin_agents.tools.web import WebSearch

        self.preflight(ctx)
        return WebSearch(self.service, os.environ[KEYS[self.service]].strip(), self.results, self.timeout_s, self.url)
