"""A connection to an MCP server: its tools are those that were pinned, and every answer has a deadline."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import shlex
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError, foreign_code
from rlhf_core.data import Tool
from rlhf_core.rollouts import ToolError
from rlhf_plugin_judge.background import end_others

if TYPE_CHECKING:
    from rlhf_plugin_agents.tools.mcp_config import McpServer


IN_PROCESS = "import:"
LEAVE_S = 5.0
"""For closing a connection; what takes longer is left to the end of the process."""


class McpConnection:
    """One server, on an event loop of its own."""

    def __init__(self, settings: McpServer) -> None:
        self.settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="mcp", daemon=True)
        self._thread.start()
        self._leave, self._ready = asyncio.Event(), threading.Event()
        self.left_out: list[str] = []
        """Tools of the last list that are called as MCP tasks alone, which this client does not speak."""
        self._client: Any = None
        self._failure: BaseException | None = None
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)
        try:
            late = not self._ready.wait(settings.connect_timeout_s)
            if late or self._failure is not None:
                why = f"it did not answer in {settings.connect_timeout_s:g} s" if late else _cause(self._failure)
                raise ConfigError(
                    f"the MCP server '{settings.shown}' cannot be reached",
                    why=why,
                    fix=f"a command, http://HOST/mcp, or {IN_PROCESS}MODULE:SERVER that runs on this machine",
                )
        except BaseException:
            self.close()
            raise

    def _run(self) -> None:
        """Run the loop until it is stopped: what ends a tool of this process (``sys.exit``) ends no more than that."""
        while True:
            try:
                self._loop.run_forever()
                return
            except BaseException as error:
                self._failure = error

    async def _serve(self) -> None:
        """Hold the connection open; it must be left by the task that entered it."""
        try:
            from mcp import Client

            async with Client(_target(self.settings), read_timeout_seconds=self.settings.timeout_s) as client:
                self._client = client
                self._ready.set()
                await self._leave.wait()
        except BaseException as error:
            self._failure = error
        finally:
            self._client = None
            self._ready.set()

    def _wait(self, make: Callable[[Any], Coroutine[Any, Any, Any]], what: str, seconds: float | None = None) -> Any:
        """What the server answers, within ``timeout_s`` or less."""
        seconds = self.settings.timeout_s if seconds is None else seconds
        if self._client is None:
            raise ToolError(f"the tool's server is gone: {_cause(self._failure)}")
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(make(self._client), seconds), self._loop)
        try:
            return future.result(seconds + LEAVE_S)
        except TimeoutError as error:
            future.cancel()
            raise ToolError(f"{what} did not answer in {seconds:g} s") from error
        except CancelledError as error:
            raise ToolError(f"the tool's server ended during {what}") from error
        except BaseException as error:
            if not future.done():  # Ctrl-C
                raise
            late = "timed out" in str(error).lower()
            raise ToolError(f"{what} did not answer in {seconds:g} s" if late else _cause(error)) from error

    def tools(self) -> list[Tool]:
        """What the server offers now, the chosen ones of it that this client can call, in OpenAI's form."""
        listed: list[Tool] = []
        self.left_out = []
        cursor: str | None = None
        seen: set[str] = set()
        end = time.monotonic() + self.settings.timeout_s
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise ToolError(f"the list did not end in {self.settings.timeout_s:g} s")
            page = self._wait(
                lambda client, at=cursor: client.list_tools(cursor=at, cache_mode="refresh"), "the list", left
            )
            for tool in page.tools:
                if tool.execution is not None and tool.execution.task_support == "required":
                    self.left_out.append(tool.name)
                    continue
                function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
                listed.append({"type": "function", "function": function})
            cursor = page.next_cursor
            if cursor is None:
                break
            if cursor in seen:
                raise ToolError("the list of tools does not end: a page names an earlier one as its next")
            seen.add(cursor)
        chosen = self.settings.only
        return [t for t in listed if not chosen or t["function"]["name"] in chosen]

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool, if the server still offers what was pinned."""
        if pin_of(self.tools()) != self.settings.pin:
            raise ToolError(f"the server '{self.settings.shown}' has changed its tools since they were pinned")
        result = self._wait(lambda client: client.call_tool(name, dict(arguments)), f"tool '{name}'")
        text = "\n".join(_text(block) for block in result.content)
        if not result.content and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        if result.is_error:
            raise ToolError(text or "the tool failed")
        return text

    def close(self) -> None:
        """Leave the server; idempotent."""
        if not self._loop.is_running():
            return
        self._loop.call_soon_threadsafe(self._leave.set)
        with suppress(Exception, CancelledError):
            self._serving.result(LEAVE_S if self._client is not None else 0)
        with suppress(Exception, CancelledError):  # a task that is cancelled ends the server's process
            asyncio.run_coroutine_threadsafe(end_others(), self._loop).result(LEAVE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LEAVE_S)


def pin_of(tools: Sequence[Tool]) -> str:
    rows = sorted(json.dumps(t["function"], sort_keys=True) for t in tools)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def _target(settings: McpServer) -> Any:
    from mcp import StdioServerParameters

    environment = {name: os.environ[name] for name in settings.env if name in os.environ}
    if settings.server.startswith(IN_PROCESS):
        module, _, name = settings.server.removeprefix(IN_PROCESS).partition(":")
        with foreign_code("an MCP server cannot be loaded", settings.server, "correct it", ConfigError):
            return getattr(importlib.import_module(module), name)
    if settings.server.startswith(("http://", "https://")):
        if settings.token_env is None:
            return settings.server
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        token = os.environ[settings.token_env]
        client = create_mcp_http_client(headers={"Authorization": f"Bearer {token}"})
        return streamable_http_client(settings.server, http_client=client)
    command, *arguments = shlex.split(settings.server)
    return StdioServerParameters(command=command, args=arguments, env=environment)


def _text(block: Any) -> str:
    return block.text if getattr(block, "text", None) is not None else f"[{block.type}: not shown]"


def _cause(error: BaseException | None) -> str:
    """The first cause in a group of them, as one line."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return "it was closed" if error is None else f"{type(error).__name__}: {error}".strip().rstrip(":")
