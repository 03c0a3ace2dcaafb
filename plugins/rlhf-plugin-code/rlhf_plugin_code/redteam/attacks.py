"""Reads the attacks: ``GROUP.toml`` holds each program by name, the ``parts`` that it comes after, and for verdicts the
test that it wants to pass."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

EQUAL = "assert f(7) == @WANTED@"


class Attack(NamedTuple):
    code: str
    test: str = EQUAL


def attacks(group: str) -> Mapping[str, Attack]:
    """The attacks of ``resources``, ``escapes`` or ``verdicts`` by name, in the order in which they are tried."""
    file = tomllib.loads((Path(__file__).parent / f"{group}.toml").read_text(encoding="utf-8"))
    return {
        name: Attack(
            "".join([*(file["parts"][part] for part in each.get("after", ())), each["code"]]), each.get("test", EQUAL)
        )
        for name, each in file["attacks"].items()
    }


GROUPS = {group: attacks(group) for group in ("resources", "escapes", "verdicts")}
