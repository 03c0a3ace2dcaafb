"""Mappings that lie over each other, in which every value may remember where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rlhf_core.plugins.kinds import SHORT_FIELDS


class Setting(NamedTuple):
    """A value and where it was set.

    Example:
        Setting(1e-4, "--set")
    """

    value: Any
    origin: str


def label(data: Any, origin: str) -> Any:
    """The same mapping with a :class:`Setting` in the place of every value that is no mapping."""
    if isinstance(data, Mapping):
        return {key: label(value, origin) for key, value in data.items()}
    return Setting(data, origin)


def plain(labelled: Any) -> Any:
    """The reverse of :func:`label`; what has no labels stays as it is."""
    if isinstance(labelled, Setting):
        return labelled.value
    if isinstance(labelled, dict):
        return {key: plain(value) for key, value in labelled.items()}
    return labelled


def merge_settings(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings deeply; ``over`` wins. A component given another ``name`` replaces the whole mapping."""
    merged = dict(base)
    for key, value in over.items():
        lower, upper = as_mapping(key, merged.get(key)), as_mapping(key, value)
        both = isinstance(lower, dict) and isinstance(upper, dict)
        merged[key] = merge_settings(lower, upper) if both and same_component(lower, upper) else upper
    return merged


def fill(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Give each key that ``data`` leaves open its default.

    Unlike in :func:`merge_settings` a null is open, too, defaults for a component of another name are left out, and so
    are those of a data set where ``data`` lists its sources.
    """
    filled = dict(data)
    for key, value in defaults.items():
        upper, lower = as_mapping(key, filled.get(key)), as_mapping(key, value)
        if plain(upper) is None:
            filled[key] = lower
        elif isinstance(upper, dict) and isinstance(lower, dict) and "sources" not in upper:
            filled[key] = merge_settings(lower, upper) if same_component(lower, upper) else upper
    return filled


def as_mapping(key: str, value: Any) -> Any:
    """``{"name": NAME}`` where a component or data set is given as a bare name; anything else as it is."""
    return {"name": value} if isinstance(plain(value), str) and key in SHORT_FIELDS else value


def same_component(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> bool:
    """Whether two mappings may be settings of one component: the same name, or one side without."""
    return "name" not in upper or "name" not in lower or plain(lower["name"]) == plain(upper["name"])
