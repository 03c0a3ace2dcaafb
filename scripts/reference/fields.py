"""A pydantic model as a Markdown table of its settings."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

REQUIRED = object()
HEAD = "| setting | type | default | meaning |\n|---|---|---|---|\n"


def table_of(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of name, type, default and meaning, as :func:`rows_of` gives them."""
    if not rows:
        return "No settings.\n"
    return HEAD + "".join(f"| {' | '.join(r)} |\n" for r in rows)


def rows_of(
    model: type[BaseModel], prefix: str, values: BaseModel | None, skip: frozenset[str] = frozenset()
) -> list[tuple[str, ...]]:
    """The rows of one model, depth first, nested settings as ``outer.inner``; ``values`` holds the outer model's
    defaults for it."""
    rows: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        default = getattr(values, name) if values is not None else default_of(field)
        if isinstance(default, BaseModel):
            rows += rows_of(type(default), f"{prefix}{name}.", default)
        elif name not in skip:
            meaning = " ".join((field.description or "").split()).replace("|", "\\|")
            rows.append((f"`{prefix}{name}`", f"`{spell(field)}`", f"`{shown(default)}`", meaning))
    return rows


def default_of(field: FieldInfo) -> Any:
    """The default value, or :data:`REQUIRED`."""
    return REQUIRED if field.is_required() else field.get_default(call_default_factory=True, validated_data={})


def spell(field: FieldInfo) -> str:
    """The type as a person writes it. Example: ``int ≥ 1``"""
    kind = field.annotation
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    text = re.sub(r"typing\.Annotated\[(\w+), AfterValidator\([^)]*\)\]", r"\1", text)
    text = re.sub(r"typing\.Optional\[(\w+)\]", r"\1", text)
    if "ComponentConfig" in text:
        text = "components" if text.startswith("tuple") else "component"
    text = re.sub(r"(?:typing\.)?Annotated\[(\w+), FieldInfo\([^\]]*\]\)\]", r"\1", text)
    text = re.sub(r"\b\w+(\.\w+)*\.(?=[A-Z])", "", text).replace(" | None", "").replace("|", "\\|")
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [f"{signs[key]} {getattr(m, key):g}" for m in field.metadata for key in signs if hasattr(m, key)]
    return " ".join([text, ", ".join(limits)]).strip()


def shown(default: Any) -> str:
    """A default as it is written in YAML; ``required`` where there is none."""
    if default is REQUIRED:
        return "required"
    if isinstance(default, tuple):
        return json.dumps([d.model_dump(mode="json") if isinstance(d, BaseModel) else d for d in default], default=str)
    return json.dumps(default, default=str)
