"""`rlhf` commands from inside one: found by their words, their options read, asked without a process of their own."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from rlhf_core.config import ConfigError, PluginError, did_you_mean
from rlhf_plugin_recipes.files import flat

UNUSABLE = ("help", "json", "dry_run", "debug")
"""Options that the recipe itself gives or that would end the command."""


def root() -> click.Command:
    return click.get_current_context().find_root().command


def find_command(words: Sequence[str]) -> click.Command:
    command, ctx = root(), click.get_current_context()
    for word in words:
        names = command.list_commands(ctx) if isinstance(command, click.Group) else []
        inner = command.get_command(ctx, word) if isinstance(command, click.Group) else None
        if inner is None:
            raise PluginError(
                f"there is no command `rlhf {' '.join(words)}`",
                fix=did_you_mean(word, names) or "install the plugin that brings it",
            )
        command = inner
    if isinstance(command, click.Group):
        raise ConfigError(f"`rlhf {' '.join(words)}` is a group of commands", fix="name one of them: rlhf --help")
    return command


def options_of(command: click.Command) -> dict[str, click.Parameter]:
    """Key in a recipe -> option or argument; ``--max-tokens`` is ``max_tokens``."""
    keys: dict[str, click.Parameter] = {}
    for param in command.params:
        names = [name.lstrip("-") for name in param.opts if name.startswith("--")] or [str(param.name)]
        keys[names[0].replace("-", "_")] = param
    return {key: param for key, param in keys.items() if key not in UNUSABLE}


def arguments(command: click.Command, settings: Mapping[str, Any]) -> list[str]:
    params = options_of(command)
    options: list[str] = []
    positional: list[str] = []
    for key, value in settings.items():
        param = params.get(key)
        if param is None:
            raise ConfigError(f"unknown key '{key}'", fix=did_you_mean(key, params) or f"one of: {', '.join(params)}")
        many = param.multiple if isinstance(param, click.Option) else param.nargs == -1
        if isinstance(param, click.Argument):
            positional += _values(key, value, many)
        elif isinstance(param, click.Option) and param.is_flag:
            if not isinstance(value, bool):
                raise ConfigError(f"{key} is {value!r}", fix=f"{key}: true or false")
            options += [param.opts[0]] if value else []
        else:
            long = next(name for name in param.opts if name.startswith("--"))
            options += [word for one in _values(key, value, many) for word in (long, one)]
    return [*positional, *options]


def check_arguments(words: Sequence[str], command: click.Command, args: Sequence[str]) -> None:
    """Let the command parse its words, and do nothing."""
    try:
        command.make_context(f"rlhf {' '.join(words)}", list(args), parent=click.get_current_context())
    except click.ClickException as error:
        raise ConfigError(error.format_message(), fix=f"rlhf {' '.join(words)} --help") from error


def has_option(command: click.Command, name: str) -> bool:
    return any(f"--{name}" in param.opts for param in command.params)


def ask(*words: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            root().main(args=list(words), prog_name="rlhf", standalone_mode=False)
        except SystemExit as end:
            if end.code:
                raise ConfigError(f"`rlhf {' '.join(words)}` ended with exit code {end.code}") from end
        except click.ClickException as error:
            raise ConfigError(error.format_message()) from error
    return printed.getvalue()


def ask_json(*words: str) -> Any:
    return json.loads(ask(*words))


def _values(key: str, value: Any, many: bool) -> list[str]:
    if isinstance(value, Mapping):
        if not many:
            raise ConfigError(f"{key} is a mapping", fix="give one value")
        return [f"{name}={_text(one)}" for name, one in flat(value).items()]
    if isinstance(value, list):
        if not many:
            raise ConfigError(f"{key} is a list", fix="give one value")
        return [_text(one) for one in value]
    return [] if value is None else [_text(value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
