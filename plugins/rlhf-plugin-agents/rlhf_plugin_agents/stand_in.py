"""A service whose model is the oracle of a suite: rehearses a paid evaluation on this machine, faults included.

    python -m rlhf_plugin_agents.stand_in agentbench_mini --port 8123 --fault 429=0.1 --fault hang=0.01
    rlhf eval agentbench_mini --backend openai --model oracle --set backend.base_url=http://127.0.0.1:8123/v1

It speaks the Messages API and chat completions as the judge plugin's stand-in does, and counts what it would have
billed (``/seen``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_plugin_agents.agents.multi_agent import ROLES, role_of
from rlhf_plugin_agents.backends.base import ModelRequest
from rlhf_plugin_agents.suites.task import AgentTask
from rlhf_plugin_episodes.tool_spec import tool_spec
from rlhf_plugin_judge.stand_in import arguments, serve
from rlhf_plugin_judge.stand_in_tools import Wrote, flat

Body = Mapping[str, Any]


def oracle(tasks: Sequence[AgentTask]) -> Callable[[Body], Wrote]:
    """What answers a request body as the tasks' oracle would; it finds the task by its first turn."""
    scripts = {str(t.messages[-1]["content"]): t.scripts["oracle"] for t in tasks if "oracle" in t.scripts}

    def answer(body: Body) -> Wrote:
        messages = flat(body)
        request = ModelRequest(messages, _offered(body), "native" if body.get("tools") else "none", role_of(messages))
        if request.role == "executor":
            return _executed(request)
        questions = [str(m["content"]) for m in messages if m["role"] == "user"]
        script = next((scripts[text] for text in questions if text in scripts), None)
        script = script or (next(iter(scripts.values())) if request.role in dict(ROLES).values() else None)
        if script is None:
            return Wrote("I do not know this task.")
        message = script(request)
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
        return Wrote(str(message.get("content") or ""), calls)

    return answer


def _executed(request: ModelRequest) -> Wrote:
    """The call whose arguments the sub-task holds, as the oracle's plan put them there."""
    text = str(request.messages[-1]["content"]).partition(": ")[2]
    arguments, _ = json.JSONDecoder().raw_decode(text)
    return Wrote("", [(request.tools[0]["function"]["name"], arguments)])


def _offered(body: Body) -> tuple[Any, ...]:
    functions = [t.get("function") or t for t in body.get("tools") or ()]
    return tuple(tool_spec(f["name"], str(f.get("description") or "")) for f in functions)


def main(argv: Sequence[str] | None = None) -> None:
    from rlhf_core.cli import context_of, open_registry

    parser = arguments(__doc__)
    parser.add_argument("suite", nargs="?", default="agentbench_mini")
    args = parser.parse_args(argv)
    ctx = context_of(open_registry())
    suite: Any = ctx.registry.config("benchmark", args.suite)
    serve(args, oracle(suite.tasks(ctx)), models=("oracle",))


if __name__ == "__main__":
    main()
