"""Conformance of environments and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlhf_core.config import BuildContext, ComponentConfig, UserError
from rlhf_core.data import Prompt, Tool
from rlhf_core.rewards import Sample
from rlhf_core.rollouts import Turn
from rlhf_plugin_episodes.config import check_tools
from rlhf_plugin_episodes.serve import answer
from rlhf_testing.config import built, check_config
from rlhf_testing.report import require
from rlhf_testing.samples import GARBAGE, make_context

CHARACTERS = 1000
EXAMPLES: Mapping[str, Any] = {"string": "2", "number": 2, "integer": 2, "boolean": True, "array": [], "object": {}}


def check_environment(
    config: ComponentConfig,
    ctx: BuildContext | None = None,
    *,
    prompt: Prompt | None = None,
    calls: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> None:
    """Check an environment: its tools have schemas and names of their own; one result per call, in order; the same seed
    and calls give the same results and score, and the same answers of ``respond`` where its Config says ``responds``;
    it can be resumed; a score for whatever a policy writes.

    Args:
        ctx: passed to ``build``; None makes one like a worker's, with a registry and no run.
        prompt: of the episodes; None takes a question with an answer.
        calls: (tool, arguments) to be made; none takes one call of each tool, made up from its schema.
    """
    check_config(config, "environment")
    tools: Sequence[Tool] = getattr(config, "offered", tuple)()
    try:
        check_tools(tools, config.name)
    except UserError as error:
        require(False, config, "its tools can be offered", str(error))
    task = prompt or Prompt("kit/1", ({"role": "user", "content": "What is 2 + 2?"},), answer="4")
    made = list(calls) or [(str(tool["function"]["name"]), example(tool)) for tool in tools]
    rows = [{"id": f"call{n:05d}", "name": name, "arguments": dict(given)} for n, (name, given) in enumerate(made)]
    context = ctx or make_context(policy=None)
    one, two = (_begun(config, context, task) for _ in range(2))
    results = _step(config, one, rows)
    failed = [answers[0]["content"] for answers in results if answers[0]["status"] != "ok"]
    rule, fix = "a call of a tool succeeds", 'check_environment(config, calls=[("tool", {"argument": value}), ...])'
    require(not rows or len(failed) < len(rows), config, rule, f"every call failed, the first with {failed[:1]}", fix)
    rule, fix = "the same seed and calls give the same results", "draw from the seed of reset() only"
    require(results == _step(config, two, rows), config, rule, "two episodes differ", fix)
    pure = bool(getattr(config, "pure", False))
    stateful = hasattr(one, "state_dict") and hasattr(one, "load_state_dict")
    rule = "an episode can be resumed without making its calls twice"
    fix = "pure: ClassVar[bool] = True if step() changes nothing outside of the object; else write both methods"
    seen = "its Config is not pure, and it has no state_dict() and load_state_dict()"
    require(pure or stateful, config, rule, seen, fix)
    if stateful:
        again = _begun(config, context, task, _value(config, one, {"op": "step", "calls": []})["state"])
        rule, seen = "an episode goes on from its state", "after load_state_dict() the next results differ"
        require(_step(config, one, rows) == _step(config, again, rows), config, rule, seen)
    if getattr(config, "responds", False):
        _check_responses(config, context, task)
    for text in ("4", *GARBAGE):
        sample = Sample(task, text, trajectory=(Turn((0, 1), "assistant", {"role": "assistant", "content": text}),))
        first, second = (_value(config, end, {"op": "score", "sample": asdict(sample)}) for end in (two, two))
        require(first == second, config, "an episode is scored the same twice", f"{first}, then {second}")
    _value(config, one, {"op": "close"})
    _value(config, one, {"op": "close"})  # idempotent


def _check_responses(config: ComponentConfig, ctx: BuildContext, prompt: Prompt) -> None:
    """Texts without calls: two episodes of one seed are answered alike, whatever the policy writes."""
    one, two = (_begun(config, ctx, prompt) for _ in range(2))
    for text in ("4", *GARBAGE):
        first, second = (_value(config, episode, {"op": "respond", "text": text}) for episode in (one, two))
        rule = "the same seed and turns give the same answers of respond()"
        seen = f"to {text!r:.40}: {first['answer']!r:.60}, then {second['answer']!r:.60}"
        require(first == second, config, rule, seen, "draw from the seed of reset() only")


def check_tool(
    config: ComponentConfig, ctx: BuildContext | None = None, *, arguments: Mapping[str, Any] | None = None
) -> None:
    """Check a tool: a schema and a description; text for an answer, the same every time; garbled text raises at most.
    One with a state is reset before each call.

    Args:
        ctx: passed to ``build``; None makes one like a worker's.
        arguments: of a call; None makes them up from the schema.
    """
    check_config(config, "tool")
    spec: Tool = getattr(config, "spec")()  # noqa: B009
    try:
        check_tools([spec], config.name)
    except UserError as error:
        require(False, config, "it can be offered", str(error))
    require(bool(spec["function"].get("description")), config, "the policy is told what it does", "no description")
    tool = built(config, "tool", ctx or make_context(policy=None))
    given = dict(example(spec) if arguments is None else arguments)
    first, second = (_called(tool, given) for _ in range(2))
    require(isinstance(first, str), config, "call() returns a text", f"{type(first).__name__} {first!r:.80}")
    require(first == second, config, "the same call gives the same answer", f"{first!r:.60}, then {second!r:.60}")
    texts = [name for name, value in given.items() if isinstance(value, str)]
    for garbage in GARBAGE if texts else ():
        answered = _called(tool, {**given, texts[0]: garbage})
        require(isinstance(answered, str), config, "call() returns a text", f"{type(answered).__name__}")


def example(tool: Tool) -> dict[str, Any]:
    """Arguments that keep a tool's schema, where types and choices tell it."""
    parameters = tool["function"]["parameters"]
    required = parameters.get("required", ())
    return {name: _example(schema) for name, schema in parameters.get("properties", {}).items() if name in required}


def _example(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "string")
    return EXAMPLES.get(kind if isinstance(kind, str) else kind[0], "2")


def _called(tool: Any, arguments: Mapping[str, Any]) -> Any:
    if hasattr(tool, "reset"):
        tool.reset()
    try:
        return tool.call(**arguments)
    except Exception as error:  # the policy reads it
        return f"{type(error).__name__}: {error}"


def _begun(config: ComponentConfig, ctx: BuildContext, prompt: Prompt, state: Any = None) -> Any:
    environment = built(config, "environment", ctx)
    request = {"op": "reset", "prompt": asdict(Sample(prompt, "")), "seed": 7, "state": state}
    _value(config, environment, request)
    return environment


def _step(config: ComponentConfig, environment: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    return [_value(config, environment, {"op": "step", "calls": [row]})["results"] for row in rows]


def _value(config: ComponentConfig, environment: Any, request: dict[str, Any]) -> Any:
    reply = answer(environment, request, CHARACTERS)
    seen, fix = reply.get("contract") or reply.get("error"), "see Environment in docs/reference/contracts.md"
    require("value" in reply, config, f"{request['op']} keeps the protocol", str(seen), fix)
    return reply["value"]
