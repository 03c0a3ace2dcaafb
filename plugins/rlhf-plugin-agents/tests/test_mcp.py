"""Tools of MCP servers: over stdio and HTTP and in process, with a deadline, and as they were pinned."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import ToolCall
from rlhf_core.rollouts import ToolError
from rlhf_plugin_agents.tools.mcp_config import McpEnvironment, McpServer, McpToolConfig, ServerTools
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed")
SERVER = '''
import os, sys, time
from mcp.server.mcpserver import MCPServer

server = MCPServer("shop")
more = server

@server.tool()
def price(item: str) -> str:
    """The price of an item."""
    if item == "slow":
        time.sleep(600)
    if item == "none":
        raise ValueError("no such item")
    if item == "exit":
        sys.exit("bye")
    if item == "change":
        server.tool(name="extra")(lambda text: text)
    return f"{item} costs {len(item)}"

if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
'''


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    name = f"shop_server_{tmp_path.name.replace('-', '_')}"
    file = tmp_path / f"{name}.py"
    file.write_text(SERVER)
    monkeypatch.syspath_prepend(tmp_path)
    yield file
    sys.modules.pop(name, None)


def pinned(server: str, **more: Any) -> McpServer:
    """As a user does it: what is wrong says what the pin is."""
    with pytest.raises(ConfigError, match="not pinned") as refused:
        McpServer(server=server, **more).offered()
    return McpServer(server=server, pin=refused.value.fix.rpartition(" ")[2], **more)


def ask(settings: McpServer, *items: str) -> list[Any]:
    tools = ServerTools(settings)
    try:
        results = tools.step([ToolCall("price", {"item": item}) for item in items])
        return [r if isinstance(r, str) else r.content for r in results]
    finally:
        tools.close()


@pytest.fixture
def http(script: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(script), str(port)], stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_for(answers, "the server")
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


@pytest.mark.slow
def test_in_process_a_server_answers_and_one_that_changes_is_refused(script: Path) -> None:
    settings = pinned(f"import:{script.stem}:server")
    (tool,) = settings.offered()
    assert (tool["function"]["name"], tool["function"]["description"]) == ("price", "The price of an item.")
    answers = ask(settings, "tea", "none", "exit", "change", "tea")
    assert answers[0] == "tea costs 3"
    assert answers[1] == "Error: Error executing tool price"
    assert answers[2] == "Error: SystemExit: bye", "neither this process nor the connection has ended"
    assert answers[3] == "change costs 6"
    assert "has changed its tools" in answers[4]
    changed = settings.model_copy(update={"timeout_s": 7.0})  # another key: asked again
    with pytest.raises(ConfigError, match="has changed its tools") as refused:
        changed.offered()
    assert settings.pin in str(refused.value)
    one = McpToolConfig(mcp=settings.model_copy(update={"only": ("price",)}))
    assert one.spec() == tool  # with one tool chosen, others may come


@pytest.mark.slow
def test_over_stdio_a_hanging_tool_is_late_and_the_next_call_goes_on(script: Path) -> None:
    settings = pinned(f"{sys.executable} {script}", timeout_s=1.5)
    answers = ask(settings, "tea", "slow")
    assert answers == ["tea costs 3", "Error: tool 'price' did not answer in 1.5 s"]


@pytest.mark.slow
def test_over_http(http: str) -> None:
    settings = pinned(http)
    assert ask(settings, "tea") == ["tea costs 3"]
    assert McpEnvironment(mcp=settings).offered() == settings.offered()


@pytest.mark.parametrize("server", ["no-such-command --x", "http://127.0.0.1:9/mcp", "import:no_such_module:server"])
def test_a_server_that_is_missing_is_refused_before_any_work(server: str) -> None:
    with pytest.raises(ConfigError, match="cannot be reached"):
        McpServer(server=server, pin="0" * 16, connect_timeout_s=5).offered()


def test_a_server_that_ends_is_told_to_the_agent(script: Path) -> None:
    settings = pinned(f"import:{script.stem}:server")
    tools = ServerTools(settings.model_copy(update={"server": "no-such-command"}))
    with pytest.raises(ToolError, match="cannot be reached"):
        tools.answer("price", {"item": "tea"})


@pytest.mark.parametrize(
    ("server", "shown"),
    [
        ("https://me:pw@host/mcp?key=pw", "https://...@host/mcp?..."),
        ("npx server --key pw", "npx ..."),
        ("npx server --url https://host/?key=pw", "npx ..."),
        ("import:m:s", "import:m:s"),
    ],
)
def test_what_is_shown_of_a_server_holds_no_secret(server: str, shown: str) -> None:
    assert McpServer(server=server).shown == shown


def test_a_list_that_does_not_end_is_refused(script: Path) -> None:
    from types import SimpleNamespace

    from rlhf_plugin_agents.tools.mcp import McpConnection

    connection = McpConnection(McpServer(server=f"import:{script.stem}:server", timeout_s=2))

    class Endless:
        async def list_tools(self, **asked: Any) -> Any:
            return SimpleNamespace(tools=[], next_cursor="again")

    client, connection._client = connection._client, Endless()
    with pytest.raises(ToolError, match="does not end"):
        connection.tools()
    connection._client = client
    connection.close()


TASKS = """
import json, sys
schema = {"type": "object", "properties": {"item": {"type": "string"}}}
tools = [{"name": name, "inputSchema": schema, **({"execution": {"taskSupport": how}} if how else {})}
         for name, how in (one.split("=") for one in sys.argv[1:])]
for line in sys.stdin:
    request = json.loads(line)
    answers = {"tools/list": {"tools": tools}, "tools/call": {"content": [{"type": "text", "text": "done"}]}}
    answers["initialize"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "old", "version": "1"}}
    answer = {"result": answers[request["method"]]} if request["method"] in answers else {
        "error": {"code": -32601, "message": "there is no such method"}}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


def test_a_tool_that_needs_what_the_client_lacks_is_not_offered_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    server = f"{sys.executable} -S {tmp_path / 'tasks.py'} price= slow=required both=optional"
    settings = pinned(server)
    caplog.clear()
    names = [tool["function"]["name"] for tool in settings.offered()]
    assert names == ["price", "both"]
    assert "are not offered: these are called as MCP tasks alone, which this client does not speak: slow" in caplog.text
    assert ask(settings, "tea") == ["done"], "the pin is that of what is offered"
    caplog.clear()
    with pytest.raises(ConfigError, match="no tool 'slow' to call") as refused:
        settings.model_copy(update={"only": ("slow",)}).offered()
    assert "MCP tasks alone" in str(refused.value)
    with pytest.raises(ConfigError, match="has no tools to call"):
        McpServer(server=f"{sys.executable} -S {tmp_path / 'tasks.py'} slow=required").offered()


@pytest.mark.slow
def test_a_command_that_never_answers_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"import os,time; open('{note}', 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(ConfigError, match="cannot be reached"):
        McpServer(server=f'{sys.executable} -S -c "{code}"', connect_timeout_s=1).offered()
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
