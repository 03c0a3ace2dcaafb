"""Tasks of the Berkeley Function Calling Leaderboard, from its files, with verdicts by its own rules (`ast_checker` of
bfcl-eval 2026.3.23, Apache-2.0); the study `bfcl_verdicts` compares both."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data import DatasetError, Tool
from rlhf_plugin_agents.scorers import sequence_match
from rlhf_plugin_agents.suites.scripts import Script
from rlhf_plugin_agents.suites.task import AgentTask, TaskSession, Verdict
from rlhf_plugin_agents.tools.box import TaskDone, ToolBox
from rlhf_plugin_agents.trajectory import AgentTrajectory

CATEGORIES = {"simple": "simple_python"} | {n: n for n in ("multiple", "parallel", "parallel_multiple", "irrelevance")}
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""The leaderboard's names of types that JSON schema calls otherwise."""
RULES = (
    "Call the functions that the request needs, all of them at once. If none fits the request, call none and say so."
)


def load(folder: Path) -> list[AgentTask]:
    """All tasks of a folder's files, as published (``.gz`` too); possible answers lie beside them or below."""
    if not folder.is_dir():
        raise DatasetError(f"suite 'bfcl': there is no folder '{folder}'", fix="--data FOLDER with BFCL_v4_*.json")
    tasks = [
        task_of(row, category, answers)
        for category, file in CATEGORIES.items()
        for row, answers in read_category(folder, file)
    ]
    if not tasks:
        file_names = ", ".join(f"BFCL_v4_{f}.json" for f in CATEGORIES.values())
        raise DatasetError(f"there are no questions in '{folder}'", fix=f"put {file_names} (or .gz) there")
    return tasks


def read_category(folder: Path, file: str) -> list[tuple[dict[str, Any], Sequence[Answer]]]:
    answer_rows = _rows(folder / "possible_answer", file) or _rows(folder, file, "possible_answer_")
    answers = {row["id"]: row["ground_truth"] for row in answer_rows}
    pairs: list[tuple[dict[str, Any], Sequence[Answer]]] = []
    for row in _rows(folder, file):
        if file != CATEGORIES["irrelevance"] and row["id"] not in answers:
            raise DatasetError(
                f"'{row['id']}' has no possible answer",
                where=str(folder),
                fix="put possible_answer_BFCL_*.json there, too",
            )
        pairs.append((row, answers.get(row["id"], ())))
    return pairs


def _rows(folder: Path, file: str, prefix: str = "") -> list[dict[str, Any]]:
    for path in sorted(p for end in ("json", "json.gz") for p in folder.glob(f"{prefix}BFCL_v*_{file}.{end}")):
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise DatasetError(f"'{path}' is not a file of JSON lines: {error}") from error
    return []


def offered(function: Mapping[str, Any]) -> Tool:
    """A function as a tool: types as JSON schema has them, no dots in its name, which services refuse."""
    name = str(function["name"]).replace(".", "_")
    parameters = _schema(function["parameters"])
    return {
        "type": "function",
        "function": {"name": name, "description": function["description"], "parameters": parameters},
    }


def _schema(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: JSON_TYPES.get(v, v) if k == "type" and isinstance(v, str) else _schema(v) for k, v in value.items()}
    return [_schema(v) for v in value] if isinstance(value, list) else value


def task_of(row: Mapping[str, Any], category: str, answers: Sequence[Answer]) -> AgentTask:
    """One question as a task; its functions only say that they were called."""
    functions = row["function"]
    required = {f["name"]: f["parameters"].get("required", ()) for f in functions}
    right = [
        {"name": n.replace(".", "_"), "arguments": example(a, required.get(n, ()))}
        for answer in answers
        for n, a in answer.items()
    ]
    wrong = [{"name": offered(functions[0])["function"]["name"], "arguments": {"no_such_parameter": 1}}]

    def open_session(seed: int) -> TaskSession:
        return TaskSession(ToolBox([offered(f) for f in functions], _called, strict=False))

    return AgentTask(
        row["id"],
        category,
        tuple(row["question"][0]),
        open_session,
        lambda trajectory, room: judged(functions, answers, trajectory),
        {
            "oracle": Script(right, "None of the functions fits.", together=True),
            "wrong": Script(wrong, "Done.", together=True),
        },
        system=RULES,
        judged_by=[functions, answers],
    )


def _called(name: str, arguments: Mapping[str, Any]) -> str:
    raise TaskDone("called")


def judged(functions: Sequence[Mapping[str, Any]], answers: Sequence[Answer], trajectory: AgentTrajectory) -> Verdict:
    """The calls of the trajectory against the possible answers; without any answer, no call is wanted."""
    names = {str(f["name"]).replace(".", "_"): str(f["name"]) for f in functions}
    calls = [(names.get(c.name, c.name), c.arguments) for c in trajectory.calls]
    fault = fault_in_calls(functions, calls, answers)
    wanted = [n for answer in answers for n in answer]
    process = sequence_match(sorted(n for n, _ in calls), sorted(wanted))
    return Verdict(float(fault is None), fault is None, process, fault or "")


def example(accepted: Mapping[str, Sequence[Any]], required: Sequence[str] = ()) -> dict[str, Any]:
    """Arguments that are accepted: the first value of each parameter; what may be left out is, unless required."""
    values = {k: [v for v in vs if v != ""] for k, vs in accepted.items() if "" not in vs or k in required}
    return {k: _first(vs or [""]) for k, vs in values.items()}


def _first(values: Sequence[Any]) -> Any:
    value = values[0]
    if isinstance(value, Mapping):
        return example(value)
    return [example(v) if isinstance(v, Mapping) else v for v in value] if isinstance(value, list) else value


Function = Mapping[str, Any]
Call = tuple[str, Mapping[str, Any]]
Answer = Mapping[str, Mapping[str, Sequence[Any]]]
"""Name -> parameter -> accepted values; "" among them means that it may be left out."""
TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}


def fault_in_calls(functions: Sequence[Function], calls: Sequence[Call], answers: Sequence[Answer]) -> str | None:
    """What is wrong about calls in any order, each answer matched with the first that fits; None if nothing is."""
    if len(calls) != len(answers):
        return f"{len(calls)} calls, {len(answers)} are wanted"
    left = list(calls)
    for answer in answers:
        name = next(iter(answer))
        function = next((f for f in functions if f["name"] == name), None)
        if function is None:
            return f"the possible answer names '{name}', which was not offered"
        faults = [fault_in_call(function, call, answer[name]) for call in left]
        if None not in faults:
            return "; ".join(dict.fromkeys(str(f) for f in faults))
        left.pop(faults.index(None))
    return None


def fault_in_call(function: Function, call: Call, accepted: Mapping[str, Sequence[Any]]) -> str | None:
    name, arguments = call
    properties, required = function["parameters"]["properties"], function["parameters"].get("required", ())
    if name != function["name"]:
        return f"'{name}' is not '{function['name']}'"
    missing = [p for p in required if p not in arguments]
    if missing:
        return f"'{missing[0]}' is missing"
    for parameter, value in arguments.items():
        if parameter not in properties or parameter not in accepted:
            return f"'{parameter}' is not expected"
        if not _fits(value, properties[parameter], accepted[parameter]):
            return f"'{parameter}': {value!r} is none of {list(accepted[parameter])!r}"
    left_out = [p for p, values in accepted.items() if p not in arguments and "" not in values]
    return f"'{left_out[0]}' may not be left out" if left_out else None


def _fits(value: Any, described: Mapping[str, Any], accepted: Sequence[Any]) -> bool:
    """Whether a value has the described type, or that of the accepted ones, and is among these."""
    kind = described["type"]
    wanted = TYPES[kind]
    inner = TYPES[described["items"]["type"]] if kind in ("array", "tuple") else None
    if kind == "tuple" and type(value) is tuple:
        value = list(value)
    if kind == "float" and type(value) is int:
        value = float(value)
    example = _type_of(accepted)
    if type(value) is wanted:
        if inner is not None and not any(_items_fit(value, one, inner) for one in accepted):
            return False
        by_kind = example is None or example is wanted
    elif example is not None and type(value) is example:
        by_kind = False
    else:
        return False
    if by_kind and wanted is dict:
        return _dict_fits(value, accepted)
    if by_kind and wanted is list and inner is dict:
        return any(len(value) == len(one) and all(_dict_fits(v, [a]) for v, a in zip(value, one)) for one in accepted)
    if by_kind and wanted is str:
        return _plain(value) in [_plain(a) for a in accepted if type(a) is str]
    if by_kind and wanted is list:
        return [_plain(v) for v in value] in [[_plain(v) for v in one] for one in accepted]
    return value in accepted


def _type_of(accepted: Sequence[Any]) -> type | None:
    return next((type(a) for a in accepted if a != ""), None)


def _items_fit(value: Sequence[Any], one: Any, inner: type) -> bool:
    """Whether all items have the described type, or that of an accepted list's first item."""
    if type(one) is not list:
        return True
    return all(type(v) in (inner, _type_of(one)) for v in value)


def _dict_fits(value: Any, accepted: Sequence[Any]) -> bool:
    """Whether a mapping is one of the accepted ones; each of their keys has a list of accepted values."""
    if not isinstance(value, Mapping):
        return False
    return any(
        all(k in one and _plain(v) in [_plain(a) for a in one[k]] for k, v in value.items())
        and all(k in value or "" in values for k, values in one.items())
        for one in accepted
        if one != ""
    )


def _plain(value: Any) -> Any:
    """A text without blanks and ``,./-_*^``, in lower case, with double quotes; other values as they are."""
    return re.sub(r"[ ,./\-_*^]", "", value).lower().replace("'", '"') if type(value) is str else value
