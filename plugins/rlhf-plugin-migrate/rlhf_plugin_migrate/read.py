"""Another library's configuration as flat keys and values: YAML, JSON, a Python script, or a command line."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rlhf_core.config import ConfigError, load_yaml, parse_settings
from rlhf_core.data import DatasetError, check_file
from rlhf_plugin_migrate.hints import flat
from rlhf_plugin_migrate.script import read_script
from rlhf_plugin_migrate.tables import Table

_ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\S+|\"[^\"]*\"|'[^']*')\s*$", re.MULTILINE)
_OVERRIDE = re.compile(r"^[+~]*([A-Za-z_][\w.]*)=(.*)$", re.DOTALL)
_OPTION = re.compile(r"^--?([A-Za-z][\w.-]*)(?:=(.*))?$", re.DOTALL)
ENDS = frozenset({"|", "&&", "||", ";", "&", ">", "2>&1", ">>", "EOF", "$@", "${@:1}", "2>", "tee"})
"""Words at which a command ends."""


class PeerConfig(NamedTuple):
    """A configuration of another library, as its file or command line has it."""

    settings: dict[str, Any]
    program: str
    """The command, module or class that it is for, "" if it does not say."""
    unread: dict[str, str]
    """Key -> the text of a value that only running the program would give."""


def read_peer_config(source: Sequence[str], table: Table, wanted: str | None = None) -> PeerConfig:
    """Read a file or a command line; ``wanted`` is the class to translate, where a script trains several times."""
    if len(source) == 1 and source[0].endswith(".py"):
        program, script = read_script(_text_of(source[0]), source[0], table, wanted)
        return PeerConfig(script.settings, program, script.unread)
    if len(source) == 1 and not _OVERRIDE.match(source[0]) and not source[0].startswith("--"):
        return _of_text(_text_of(source[0]), source[0], table)
    return _of_words(list(source), table, "the command line")


def _text_of(path: str) -> str:
    if path == "-":
        return sys.stdin.read()
    try:
        check_file(path, "config file", "the path")
        return Path(path).expanduser().read_text()
    except DatasetError as error:
        raise ConfigError(error.what, why=error.why, fix=error.fix) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error}", fix="it must be UTF-8 text") from error


def _of_text(text: str, path: str, table: Table) -> PeerConfig:
    if path.endswith((".sh", ".bash")) or text.startswith("#!") or "\\\n" in text:
        return _of_shell(text, path, table)
    try:
        data = load_yaml(text)
    except yaml.YAMLError as error:
        if re.search(r"(^|\s)--\w", text):
            return _of_shell(text, path, table)
        raise ConfigError(
            f"config file '{path}' is neither YAML nor JSON",
            why=str(error),
            fix="correct the file, or name a .sh or .py",
        ) from error
    if isinstance(data, str):
        return _of_shell(text, path, table)
    if not isinstance(data, dict) or not data:
        what = "is empty" if not data else f"holds a {type(data).__name__}, not a mapping"
        raise ConfigError(f"config file '{path}' {what}", fix="give keys and values: YAML, JSON, a script or a command")
    return PeerConfig(data if table.classes else flat(data), "", {})  # sections of TRL's files are values


def _of_shell(text: str, path: str, table: Table) -> PeerConfig:
    variables = {"HOME": "~"} | {name: value.strip("\"'") for name, value in _ASSIGNED.findall(text)}
    for _ in range(3):  # a variable may name another
        text = re.sub(r"\$\{?(\w+)\}?", lambda m: variables.get(m[1], m[0]), text)
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ConfigError(
            f"'{path}' cannot be read as a command line", why=str(error), fix="check its quotes"
        ) from error
    return _of_words(words, table, f"'{path}'")


def _of_words(words: list[str], table: Table, where: str) -> PeerConfig:
    program, launcher, rest = _at_program(words, table)
    counts = {key for keys in table.processes for key in keys}
    settings = {key: value for key, value in _pairs(launcher) if key in counts} | dict(_pairs(rest))
    if table.classes and Path(str(settings.get("config", ""))).expanduser().is_file():
        file = str(settings.pop("config"))
        settings = _of_text(_text_of(file), file, table).settings | settings
    if not settings:
        raise ConfigError(
            f"{where} holds no settings",
            why="neither key=value nor --key value was found",
            fix="give a configuration file or a whole command line",
        )
    return PeerConfig(settings, program, {})


def _at_program(words: list[str], table: Table) -> tuple[str, list[str], list[str]]:
    """(The library's program, the words before it, and after it); all words are after where it is not named."""
    for position, word in enumerate(words):
        name = re.split(r"[./]", word.removesuffix(".py"))[-1]
        after_trl = table.peer != "TRL" or (position and words[position - 1] == "trl") or word.endswith(".py")
        if name in table.programs and not word.startswith("-") and after_trl:
            return name, words[:position], words[position + 1 :]
    return "", [], words


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """``key=value``, ``--key=value``, ``--key value ...`` and flags; others are passed over."""
    position = 0
    while position < len(words) and words[position] not in ENDS:
        option, override = _OPTION.match(words[position]), _OVERRIDE.match(words[position])
        position += 1
        if option is None:
            if override is not None:
                yield override[1], _value(override[2])
            continue
        values = [option[2]] if option[2] is not None else []
        while option[2] is None and position < len(words) and not _starts_option(words[position]):
            values.append(words[position])
            position += 1
        read = [_value(value) for value in values]
        yield option[1].replace("-", "_"), True if not read else read[0] if len(read) == 1 else read


def _starts_option(word: str) -> bool:
    return word in ENDS or (_OPTION.match(word) is not None) or _OVERRIDE.match(word) is not None


def _value(text: str) -> Any:
    try:
        return parse_settings([f"x={text}"])["x"]
    except ConfigError:
        return text


def nothing(value: Any) -> bool:
    return value is None or (isinstance(value, (str, list, Mapping)) and not value)
