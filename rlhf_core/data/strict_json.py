"""JSON as models write it: one value at a place of a text; nothing that another parser would read otherwise."""

from __future__ import annotations

import json
from typing import Any, NoReturn


class NotJson(ValueError):
    """Why a text is not one JSON value, in words for whoever wrote it."""


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An ``object_pairs_hook``: readers of JSON keep the last of two values without a word."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise NotJson(f"the key {next(n for n in names if names.count(n) > 1)!r} occurs twice")
    return row


def _constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not a JSON number")


_BEGINS = frozenset('{["-0123456789tfnNI')
_DECODER = json.JSONDecoder(object_pairs_hook=named_once, parse_constant=_constant)


def read_value(text: str, at: int = 0) -> tuple[Any, int]:
    """(The value that begins at ``at`` or after blanks, the place after it)."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    if text[at : at + 1] not in _BEGINS:  # an error of the decoder counts all lines before it
        raise NotJson("it does not begin with a value")
    try:
        value, end = _DECODER.raw_decode(text, at)
        text[at:end].encode()
        if "\\u" in text[at:end]:
            json.dumps(value, ensure_ascii=False).encode()
    except NotJson:
        raise
    except RecursionError as error:
        raise NotJson("it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise NotJson("it holds half of a character (a lone surrogate)") from error
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} (character {error.pos - at + 1})") from error
    except ValueError as error:  # an integer of thousands of digits
        raise NotJson(str(error).partition(";")[0]) from error
    return value, end


def read_whole(text: str) -> Any:
    """The one value that a text is."""
    value, end = read_value(text)
    if text[end:].strip():
        raise NotJson(f"more follows after the value: {text[end:].strip()[:40]!r}")
    return value
