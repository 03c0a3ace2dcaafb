"""The ``ground_truth`` of a published RLVR row as what verifiers read: a reference answer, or instructions.

Forms: ``72``, ``[0, 4]`` or LaTeX (GSM8K, MATH); ``{"func_name": ..., "N": 3, ...}``
(RLVR-GSM-MATH-IF-Mixed-Constraints, RLVR-IFeval); ``[{'instruction_id': [...], 'kwargs': [None, {...}]}]``
(IF_multi_constraints_upto5), each as JSON or as a Python literal, also as the only text of a list.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
LISTED = ("keyword", "first_word", "last_word")
"""Arguments that some rows hold as a list of one text."""


def literal(text: str) -> Any:
    """The JSON or Python value that a text is; the text itself if it is neither an object nor a list."""
    stripped = text.strip()
    if not stripped.startswith(("{", "[")):
        return text
    for read in (json.loads, ast.literal_eval):
        try:
            return read(stripped)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return text


def reference_of(ground_truth: Any) -> Row:
    """``answer``, or ``instruction_id_list`` and ``kwargs``.

    Raises:
        ValueError: it is an object or a list in none of the published forms.

    Example:
        >>> reference_of("{'func_name': 'verify_bullet_points', 'N': 3, 'word': None}")
        {'instruction_id_list': ['rlvr:verify_bullet_points'], 'kwargs': [{'N': 3}]}
    """
    text = ground_truth if isinstance(ground_truth, str) else ""
    value = literal(text) if text else ground_truth
    while isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
        text = value[0]
        value = literal(text)
        if isinstance(value, str):
            break
    if isinstance(value, bool | int | float | str):
        return {"answer": str(value)}
    rows: Sequence[Any] = [value] if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else []
    rows = [literal(row) if isinstance(row, str) else row for row in rows]
    if text and value and not _has_object(rows):  # an interval, a point or a set, such as [0, 4] or {1, 2}
        return {"answer": text}
    ids, arguments = list[str](), list[Row]()
    for row in rows:
        row_ids, row_arguments = _instructions(row)
        ids += row_ids
        arguments += row_arguments
    if not ids:
        raise ValueError(f"'ground_truth' is {str(ground_truth)[:80]!r}, which names no instruction and is no answer")
    return {"instruction_id_list": ids, "kwargs": arguments}


def _has_object(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list | tuple) and any(map(_has_object, value)))


def _instructions(row: Any) -> tuple[list[str], list[Row]]:
    if isinstance(row, Mapping) and isinstance(row.get("func_name"), str):
        arguments = {k: v for k, v in row.items() if k != "func_name"}
        if isinstance(arguments.get("options"), str):
            options = literal(arguments["options"])
            arguments["options"] = [o.strip() for o in options.split(",")] if isinstance(options, str) else options
        return [f"rlvr:{row['func_name']}"], [without_nulls(arguments)]
    ids = row.get("instruction_id", row.get("instruction_id_list")) if isinstance(row, Mapping) else None
    if not isinstance(ids, list | tuple) or not ids:
        raise ValueError(
            f"'ground_truth' holds {str(row)[:80]!r}, which has neither 'func_name' nor a list 'instruction_id'"
        )
    arguments = row.get("kwargs")
    if not isinstance(arguments, list | tuple) or len(arguments) != len(ids):
        raise ValueError(f"'ground_truth' has {len(ids)} instructions, and its 'kwargs' is not a list of as many")
    if broken := next((a for a in arguments if not isinstance(a, Mapping | None)), None):
        raise ValueError(f"'ground_truth' has {str(broken)[:80]!r} in 'kwargs', not an object of arguments")
    return [str(i) for i in ids], [without_nulls(a or {}) for a in arguments]


def without_nulls(arguments: Row) -> Row:
    """Without those that are None."""
    given = {k: v for k, v in arguments.items() if v is not None}
    return {k: v[0] if k in LISTED and isinstance(v, list) and len(v) == 1 else v for k, v in given.items()}
