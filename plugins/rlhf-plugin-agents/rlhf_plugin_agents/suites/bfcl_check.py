"""Whether calls are among the possible answers of the Berkeley Function Calling Leaderboard (Patil et al. 2025).

The rules are those of the leaderboard's checker for Python (`ast_checker` of bfcl-eval 2026.3.23, Apache-2.0), also
where they are lenient; `docs/bench/bfcl_verdicts.json` compares the two on possible answers and mutations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Function = Mapping[str, Any]
Call = tuple[str, Mapping[str, Any]]
"""Name and arguments."""
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
    """What is wrong about some calls, in any order; None if nothing is.

    Args:
        functions: the descriptions that were offered.
        calls: as they were made.
        answers: one per call that is wanted; each is matched with the first call left that fits it.
    """
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
    """What is wrong about one call; None if nothing is."""
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
    """Of the first accepted value that is not "may be left out"."""
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
