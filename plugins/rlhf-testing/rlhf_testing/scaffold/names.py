"""The names of a new package, all made from the one the user typed."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

from rlhf_core.config import UserError

PREFIX = "rlhf-plugin-"


@dataclass(frozen=True)
class Names:
    """What a package's parts are called."""

    distribution: str
    module: str
    component: str
    stem: str


def names_for(typed: str) -> Names:
    """Derive every name; the prefix ``rlhf-plugin-`` is added unless it is there."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", typed):
        raise UserError(
            f"'{typed}' cannot name a package",
            why="letters, digits and single - _ . between them",
            fix=suggestion(typed),
        )
    base = re.sub(r"[-_.]+", "-", typed).lower().removeprefix(PREFIX)
    component = base.replace("-", "_")
    if not component.isidentifier() or keyword.iskeyword(component) or base == PREFIX.strip("-"):
        raise UserError(
            f"'{typed}' cannot name a component",
            why=f"'{component}' is a Python keyword"
            if keyword.iskeyword(component)
            else "it must begin with a letter, as a Python module does",
            fix=f"for example my-{base}",
        )
    stem = "".join(part[:1].upper() + part[1:] for part in component.split("_"))
    return Names(PREFIX + base, (PREFIX + base).replace("-", "_"), component, stem)


def suggestion(typed: str) -> str:
    """A valid name near to what was typed."""
    plain = re.sub(r"[^a-z0-9]+", "-", typed.lower()).strip("-")
    return f"for example {plain}" if plain[:1].isalpha() else "for example my-loss"
