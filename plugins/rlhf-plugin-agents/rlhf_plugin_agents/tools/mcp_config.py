"""Settings of MCP servers: an environment of all tools of one, and one tool of one. What is offered must be pinned."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from rlhf_core.config import BuildContext, Config, ConfigError
from rlhf_core.data import Tool
from rlhf_core.rollouts import ToolError, ToolResult, TurnStatus
from rlhf_plugin_episodes.config import EnvironmentConfig, ToolConfig

log = logging.getLogger("rlhf.agents")


class McpServer(Config):
    """A server, and what it offered when it was pinned."""

    server: str = ""
    """A command (stdio), an address ``http://HOST/mcp`` (streamable HTTP), or ``import:MODULE:SERVER`` (in process)."""
    pin: str = ""
    """Hash of names, descriptions and schemas of its tools; the error that its absence brings says it. A server that
    offers others is refused."""
    only: tuple[str, ...] = ()
    """Tools to offer; () is all."""
    env: tuple[str, ...] = ()
    """Environment variables that a command is given, besides PATH, HOME and the like."""
    token_env: str | None = None
    """Environment variable with the bearer token of an address."""
    timeout_s: float = Field(default=8.0, gt=0)
    """Seconds that an answer may take; less than ``agent.call_timeout_s``, which kills the whole episode's process."""
    connect_timeout_s: float = Field(default=20.0, gt=0)
    """Seconds until the first answer."""

    @model_validator(mode="after")
    def _named(self) -> McpServer:
        if not self.server.strip():
            raise ConfigError("an MCP server has no address", fix="server: a command, http://HOST/mcp or import:M:S")
        return self

    @property
    def shown(self) -> str:
        """Its address for people, without what may be secret in it."""
        if self.server.startswith("import:"):
            return self.server
        scheme, separator, _ = self.server.partition("://")
        if separator and " " not in scheme.strip():
            address = urlsplit(self.server)
            _, at, host = address.netloc.rpartition("@")
            return f"{scheme}://{'...@' if at else ''}{host}{address.path}{'?...' if address.query else ''}"
        command, *arguments = self.server.split(maxsplit=1)
        return f"{command} ..." if arguments else command

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables that its worker needs."""
        return (*self.env, *([self.token_env] if self.token_env else []))

    def offered(self) -> Sequence[Tool]:
        """The server's tools, asked for once per process; others than those that were pinned are refused."""
        return _offered(self.model_dump_json())


@cache
def _offered(written: str) -> tuple[Tool, ...]:
    settings = McpServer.model_validate_json(written)
    if find_spec("mcp") is None:
        raise ConfigError("MCP servers need the package 'mcp'", fix="pip install 'rlhf-plugin-agents[mcp]'")
    missing = [name for name in settings.secrets if not os.environ.get(name)]
    if missing:
        raise ConfigError(f"the MCP server '{settings.shown}' wants {missing[0]}", fix=f"export {missing[0]}=...")
    from rlhf_plugin_agents.tools.mcp import McpConnection, pin_of

    connection = McpConnection(settings)
    try:
        tools = connection.tools()
    except ToolError as error:
        raise ConfigError(f"the MCP server '{settings.shown}' does not say what it offers", why=str(error)) from error
    finally:
        connection.close()
    names = [t["function"]["name"] for t in tools]
    tasks = "these are called as MCP tasks alone, which this client does not speak: " + ", ".join(connection.left_out)
    unknown = [name for name in settings.only if name not in names]
    if unknown or not names:
        none = f"no tool '{unknown[0]}'" if unknown else "no tools"
        raise ConfigError(
            f"the MCP server '{settings.shown}' has {none} to call",
            why=tasks if connection.left_out else "",
            fix=f"there are: {', '.join(names)}" if names else "another server",
        )
    if connection.left_out and not settings.only:
        log.warning("tools of the MCP server '%s' are not offered: %s", settings.shown, tasks)
    pin = pin_of(tools)
    if settings.pin != pin:
        raise ConfigError(
            f"the MCP server '{settings.shown}' "
            + ("has changed its tools" if settings.pin else "has tools that are not pinned"),
            why=f"it offers {', '.join(names)} with the hash {pin}"
            + (f", and {settings.pin} was pinned" if settings.pin else ""),
            fix=f"read what they say, and set pin to {pin}",
        )
    return tuple(tools)


class McpEnvironment(EnvironmentConfig):
    """The tools of an MCP server, and nothing else: the reward judges the last answer.

    A call may have effects outside; one that was under way when a run was killed is not made again.
    """

    name: str = "mcp"
    component: ClassVar[str] = "rlhf_plugin_agents.tools.mcp_config:ServerTools.from_config"
    scores: ClassVar[bool] = False
    mcp: McpServer
    """The server."""

    def offered(self) -> Sequence[Tool]:
        return self.mcp.offered()

    @property
    def secrets(self) -> tuple[str, ...]:
        return self.mcp.secrets


class McpToolConfig(ToolConfig):
    """One tool of an MCP server, beside others."""

    name: str = "mcp"
    stateless: ClassVar[bool] = False
    mcp: McpServer
    """The server; ``only`` names the tool."""

    def spec(self) -> Tool:
        tools = self.mcp.offered()
        if len(tools) > 1:
            names = ", ".join(t["function"]["name"] for t in tools)
            raise ConfigError("tool 'mcp' is one tool", why=f"the server offers {names}", fix="mcp.only: [NAME]")
        return tools[0]

    @property
    def secrets(self) -> tuple[str, ...]:
        return self.mcp.secrets

    def build(self, ctx: BuildContext) -> Any:
        """The tool; its server is connected to by its first call."""
        return ServerTool(self.mcp)


class ServerTools:
    """Answers calls from a server, which each episode connects to by itself."""

    def __init__(self, settings: McpServer) -> None:
        self.settings, self._connection = settings, None

    @classmethod
    def from_config(cls, config: McpEnvironment) -> ServerTools:
        """Nothing is connected to yet: episodes are processes of their own."""
        return cls(config.mcp)

    def answer(self, name: str, arguments: Mapping[str, Any]) -> str:
        from rlhf_plugin_agents.tools.mcp import McpConnection

        if self._connection is None:
            try:
                self._connection = McpConnection(self.settings)
            except ConfigError as error:
                raise ToolError(str(error)) from error
        return self._connection.call(name, arguments)

    def reset(self, prompt: Any, seed: int) -> None:
        """Nothing is kept here; what the server keeps is its own."""

    def step(self, calls: Sequence[Any]) -> list[Any]:
        results: list[Any] = []
        for call in calls:
            try:
                results.append(self.answer(call.name, call.arguments))
            except ToolError as error:
                results.append(ToolResult(f"Error: {error}", TurnStatus.ERROR))
        return results

    def score(self, sample: Any) -> None:
        """None: the run's reward judges the answer."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ServerTool(ServerTools):
    """The one tool that ``only`` names."""

    def call(self, **arguments: Any) -> str:
        return self.answer(self.settings.offered()[0]["function"]["name"], arguments)
