"""The tools of one task: what is offered, and what answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import current_thread, main_thread
from typing import Any

from jsonschema import Draft202012Validator

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.data import Tool, ToolCall, json_values
from rlhf_core.rollouts import ToolError
from rlhf_plugin_agents.backends.base import BackendFault
from rlhf_plugin_agents.trajectory import CallRecord
from rlhf_plugin_episodes.config import ToolConfig
from rlhf_plugin_episodes.tools import error_text

Answer = Callable[[str, Mapping[str, Any]], str]
Wrapper = Callable[[str, Mapping[str, Any], Answer], str]
MAX_RESULT = 8000
"""Characters of a result; a longer one is cut, and the agent is told."""


class TaskDone(Exception):
    """Raised by a tool after which the task is over; its message is the result."""


class ToolBox:
    """Answers calls; errors become text that the agent reads. ``strict`` False skips the schemas."""

    def __init__(self, specs: Sequence[Tool], answer: Answer, *, strict: bool = True) -> None:
        self.specs, self._answer, self.done, self._strict = tuple(specs), answer, False, strict
        schemas = {s["function"]["name"]: s["function"]["parameters"] for s in specs}
        self._validators = {n: Draft202012Validator(dict(p) if strict else {}) for n, p in schemas.items()}

    @classmethod
    def of(cls, tools: Sequence[ToolConfig], ctx: BuildContext) -> ToolBox:
        specs = [t.spec() for t in tools]
        name, count = Counter(s["function"]["name"] for s in specs).most_common(1)[0] if specs else ("", 0)
        if count > 1:
            raise ConfigError(f"{count} tools are called '{name}'", fix="leave one of them")
        built = {s["function"]["name"]: t.build(ctx) for s, t in zip(specs, tools)}
        return cls(specs, lambda name, arguments: str(built[name].call(**arguments)))

    def only(self, names: Sequence[str]) -> ToolBox:
        return ToolBox([s for s in self.specs if s["function"]["name"] in names], self._answer)

    def around(self, wrap: Wrapper, *further: Tool) -> ToolBox:
        """The same tools and ``extra`` ones; calls go to ``wrap(name, arguments, answer)``."""
        return ToolBox([*self.specs, *further], lambda n, a: wrap(n, a, self._answer), strict=self._strict)

    def call(self, call: ToolCall) -> CallRecord:
        start, arguments = time.monotonic(), json_values(call.arguments)
        result, status = self._result(call, arguments)
        result = result.encode("utf-8", "replace").decode()  # half characters, which no file holds
        if len(result) > MAX_RESULT:
            result = f"{result[:MAX_RESULT]}\n[cut: {len(result)} characters]"
        return CallRecord(call.name, arguments, result, status, call.id, time.monotonic() - start)

    def _result(self, call: ToolCall, arguments: Mapping[str, Any]) -> tuple[str, str]:
        if call.error:
            return f"Error: {call.error}", "error"
        validator = self._validators.get(call.name)
        if validator is None:
            return f"Error: there is no tool '{call.name}'; there are {', '.join(self._validators) or 'none'}", "error"
        fault = next(iter(validator.iter_errors(arguments)), None)
        if fault is not None:
            argument = ".".join(str(p) for p in fault.path)
            return f"Error: {argument + ': ' if argument else ''}{fault.message}", "error"
        try:
            return self._answer(call.name, arguments), "ok"
        except TaskDone as end:
            self.done = True
            return str(end), "ok"
        except BackendFault:  # what no agent can help ends the task
            raise
        except ToolError as error:
            return f"Error: {error}", "error"
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():  # Ctrl-C
                raise
            return error_text(error), "error"
