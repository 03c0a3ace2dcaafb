"""What the page calls a metric and where it stands, by ``metrics.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Group(NamedTuple):
    rank: int
    title: str
    open: bool = False
    """Whether it begins unfolded."""


@cache
def known() -> Mapping[str, Any]:
    return tomllib.loads((files("rlhf_plugin_report") / "metrics.toml").read_text(encoding="utf-8"))


def group_of(metric: str) -> Group:
    groups = enumerate(known()["group"])
    return next(Group(n, g["title"], g.get("open", False)) for n, g in groups if re.search(g["metrics"], metric))


def words_of(metric: str) -> str:
    """Example: ``words_of("completion_length/mean")`` is ``"Completion length: mean (tokens)"``."""
    if metric.startswith("eval/"):
        return f"{words_of(metric.removeprefix('eval/'))}, held out"
    if metric in known()["words"]:
        words, *unit = known()["words"][metric]
        return f"{words} ({unit[0]})" if unit else words
    for beginning, words in known()["beginnings"].items():
        if metric.startswith(beginning):
            return words + _spaced(metric.removeprefix(beginning))
    return _spaced(metric).capitalize()


def order_of(metric: str) -> tuple[int, int, str, str]:
    """Charts stand as ``metrics.toml`` names their metrics, group by group, then by name; held-out ones come last."""
    places, name = list(known()["words"]), metric.removeprefix("eval/")
    return group_of(metric).rank, places.index(name) if name in places else len(places), name, metric[: -len(name)]


def _spaced(name: str) -> str:
    return name.replace("/", ", ").replace("_", " ")
