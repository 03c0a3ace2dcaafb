"""In an episode's process: the environment's methods, one request at a time."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlhf_core.data import ToolCall
from rlhf_core.rewards import Score
from rlhf_core.rollouts import ToolError, ToolResult, TurnStatus
from rlhf_plugin_verifiers.workers import pack, sample_from_json, score_to_json

DETAIL = 500
"""Characters of an exception."""


class WrongType(Exception):
    """The environment returned something else than its protocol says."""


def serve(environment: Any, spec: dict[str, Any], lines: Iterator[bytes], send: Callable[[bytes], object]) -> None:
    """Answer every request. A process that the environment forked and that comes back here ends at once."""
    owner, characters = os.getpid(), int(spec["max_result_characters"])
    sys.stdout = sys.stderr  # what a tool prints is no answer
    for line in lines:
        reply = answer(environment, json.loads(line), characters)
        if os.getpid() != owner:
            os._exit(0)
        send(pack(reply))


def answer(environment: Any, request: dict[str, Any], characters: int) -> dict[str, Any]:
    """What a method returned, what it raised (``error``), or what was wrong with what it returned (``contract``)."""
    try:
        return {"value": _OPERATIONS[request["op"]](environment, request, characters)}
    except WrongType as error:
        return {"contract": str(error)[:DETAIL]}
    except BaseException as error:  # SystemExit too: the process goes on
        return {"error": f"{type(error).__name__}: {error}"[:DETAIL]}


def _reset(environment: Any, request: dict[str, Any], characters: int) -> None:
    returned = environment.reset(sample_from_json(request["prompt"]).prompt, request["seed"])
    if returned is not None:
        raise WrongType(f"reset() returned {_shown(returned)}, expected None: the prompt is the data set's")
    if (state := request.get("state")) is not None:
        environment.load_state_dict(state)


def _step(environment: Any, request: dict[str, Any], characters: int) -> dict[str, Any]:
    calls = [ToolCall(c["name"], c["arguments"], c["id"]) for c in request["calls"]]
    try:
        results = environment.step(calls)
    except ToolError as error:
        results = [ToolResult(f"Error: {error}", TurnStatus.ERROR)] * len(calls)
    if isinstance(results, str | bytes) or not isinstance(results, Sequence) or len(results) != len(calls):
        raise WrongType(f"step() returned {_shown(results)} for {len(calls)} calls, expected a list with one per call")
    rows = [_result(result, characters) for result in results]
    return {"results": rows, "state": _state(environment)}


def _respond(environment: Any, request: dict[str, Any], characters: int) -> dict[str, Any]:
    respond = getattr(environment, "respond", None)
    answer = None if respond is None else respond(request["text"])
    row = None if answer is None else _result(answer, characters)
    return {"answer": row, "state": None if row is None else _state(environment)}


def _score(environment: Any, request: dict[str, Any], characters: int) -> dict[str, Any] | None:
    returned = environment.score(sample_from_json(request["sample"]))
    if returned is None:
        return None
    if isinstance(returned, bool | int | float):
        if not math.isfinite(returned):
            raise WrongType(f"score() returned {returned}, expected a finite number")
        returned = Score(float(returned))
    if not isinstance(returned, Score):
        raise WrongType(f"score() returned {_shown(returned)}, expected a Score, a number or None")
    return score_to_json(returned)


def _close(environment: Any, request: dict[str, Any], characters: int) -> None:
    close = getattr(environment, "close", None)
    if close is not None:
        close()


_OPERATIONS: dict[str, Callable[[Any, dict[str, Any], int], Any]] = {
    "reset": _reset,
    "step": _step,
    "respond": _respond,
    "score": _score,
    "close": _close,
}


def _state(environment: Any) -> Any:
    state = getattr(environment, "state_dict", None)
    if state is None:
        return None
    value = state()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise WrongType(f"state_dict() returned what is not JSON: {error}") from error
    return value


def _result(result: Any, characters: int) -> dict[str, Any]:
    """A result as JSON, its text cut to what the policy may read."""
    if isinstance(result, bytes | str):
        result = ToolResult(result)  # pyright: ignore[reportArgumentType]
    if not isinstance(result, ToolResult):
        raise WrongType(f"step() returned {_shown(result)} as a result, expected a ToolResult or a str")
    status, content = TurnStatus(result.status), result.content
    if isinstance(content, bytes) or (isinstance(content, str) and _binary(content)):
        content, status = f"Error: the tool returned {len(content)} bytes that are not text", TurnStatus.ERROR
    if not isinstance(content, str):
        raise WrongType(f"a result holds {_shown(content)}, expected a str")
    content = content.encode(errors="replace").decode()
    if len(content) > characters:
        content = f"{content[:characters]}\n[cut: {characters} of {len(content)} characters]"
        status = TurnStatus.TRUNCATED if status is TurnStatus.OK else status
    score = result.score
    if score is not None and not math.isfinite(score):
        raise WrongType(f"a result has the score {score}, expected a finite number")
    return {"content": content, "status": status.value, "score": score, "done": bool(result.done)}


def _binary(text: str) -> bool:
    """Whether a text holds what no text does."""
    head = text[:4096]
    odd = sum(not (c.isprintable() or c in "\n\r\t") for c in head)
    return "\x00" in head or odd * 5 > max(len(head), 5)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.80}"
