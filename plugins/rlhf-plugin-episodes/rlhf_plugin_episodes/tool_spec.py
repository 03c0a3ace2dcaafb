"""What a tool is to a chat template: name, description and schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_core.data import Tool


def tool_spec(name: str, description: str, /, required: Sequence[str] | None = None, **parameters: Any) -> Tool:
    """A tool as the chat template is given it, in OpenAI's form. ``parameters``: name -> JSON type, such as
    ``"string"``, or a whole schema, with ``enum``, ``description`` or ``default``; ``required`` None means all.

    Example:
        tool_spec("search", "Finds a fact.", ["name"], name="string", unit={"enum": ["C", "F"], "default": "C"})
    """
    properties = {key: {"type": value} if isinstance(value, str) else value for key, value in parameters.items()}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
