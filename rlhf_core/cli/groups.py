"""Groups of commands that are imported when they are called, and to which distributions add theirs (ADR 0010).

Entry-point group ``rlhf.command``; the entry's name is the command's path with dots::

    [project.entry-points."rlhf.command"]
    "reward.evaluate" = "rlhf_plugin_example.cli:evaluate"     # rlhf reward evaluate
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import click

from rlhf_core.plugins.entry_points import Entry, brought_by, disabled_distributions, entries_of, load_entry
from rlhf_core.types.errors import ConfigError, PluginError, RlhfError, did_you_mean

LENGTH = 110


def description(value: str) -> str:
    """First sentence of the help of a command, or of the docstring of a component, else of its module's."""
    module, _, name = value.partition(":")
    try:
        tree = ast.parse(source_of(module).read_text(encoding="utf-8"))
    except (OSError, ImportError, ValueError, SyntaxError):  # a call of the command says what is wrong
        return ""
    text = ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            texts = options(node.decorator_list)
            text = texts.get("short_help") or texts.get("help") or ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.targets[0]) == name:
            text = "".join([str(arg.value) for arg in node.value.args if isinstance(arg, ast.Constant)][-1:])
    return click.Command(name, help=text or ast.get_docstring(tree) or "").get_short_help_str(LENGTH)


def options(decorators: Iterable[ast.expr]) -> dict[str, str]:
    """What is given as text to ``@click.command(...)`` or ``@click.group(...)``."""
    calls = [d for d in decorators if isinstance(d, ast.Call) and ast.unparse(d.func).endswith(("command", "group"))]
    keywords = [k for call in calls for k in call.keywords]
    return {k.arg: str(k.value.value) for k in keywords if k.arg and isinstance(k.value, ast.Constant)}


def source_of(module: str) -> Path:
    """The file of a module, found without executing its package."""
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top)
    for name in below:
        spec = PathFinder.find_spec(name, spec.submodule_search_locations) if spec else None
    if spec is None or spec.origin is None:
        raise FileNotFoundError(module)
    return Path(spec.origin)


GROUP = "rlhf.command"


class Choice(click.Choice[str]):
    """A choice that names the nearest of its values."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value, or fail with a suggestion."""
        if value not in self.choices:
            near = did_you_mean(str(value), self.choices, limit=1)
            known = near[0].upper() + near[1:] if near else f"Known: {', '.join(self.choices)}"
            self.fail(f"there is no '{value}'. {known}", param, ctx)
        return super().convert(value, param, ctx)


class OpenGroup(click.Group):
    """A group of lazy commands, its own and those that installed distributions add. Its own cannot be replaced.

    Args:
        path: where it stands, with dots; "" is the `rlhf` command itself.
        lazy: name -> (``module:attribute``, one line of help), in the order of the help.
    """

    def __init__(
        self, *args: Any, path: str = "", lazy: Mapping[str, tuple[str, str]] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.path, self.lazy = path, dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Own commands in the order a newcomer needs them, then those of plugins by name."""
        try:
            added = set(self._added())
        except ConfigError:  # a damaged list of disabled plugins: the core's own commands say what to do
            added = set[str]()
        core_commands = self._own(ctx)
        return core_commands + sorted(added - set(core_commands))

    def has_own(self, ctx: click.Context, name: str) -> bool:
        """Whether a command is the group's own, which no plugin can replace."""
        return name in self._own(ctx)

    def _own(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command.

        Raises:
            PluginError: two distributions add it, or it does not load.
        """
        path = self._below(cmd_name)
        if cmd_name in self.lazy:
            module, _, name = self.lazy[cmd_name][0].partition(":")
            return opened(getattr(importlib.import_module(module), name), path)
        if (own_command := super().get_command(ctx, cmd_name)) is not None:
            return opened(own_command, path)
        entries = self._added().get(cmd_name)
        if entries is None:
            return None
        leaves = [e for e in entries if e.name == path]
        return opened(load(leaves, path), path) if leaves else OpenGroup(cmd_name, path=path, help=summary_of(entries))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command for a mistyped one."""
        if args and args[0] not in self._own(ctx) and args[0] not in (known := [*self._own(ctx), *self._added()]):
            import difflib

            from rlhf_core.config.hints import USAGE_GROUP, KeyHints, answers

            error = click.UsageError(f"no such command '{args[0]}'.", ctx)
            near = difflib.get_close_matches(args[0], known, n=1)
            meant = next(answers(USAGE_GROUP, error, args, KeyHints), "")
            hint = f" Did you mean: {meant}?" if meant else f" Did you mean '{near[0]}'?" if near else ""
            if distribution := brought_by("command", self._below(args[0])):
                hint = f" pip install {distribution}, or enable it: rlhf plugins enable {distribution}"
            ctx.fail(f"{error.message}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list; a plugin's commands with their distribution. None is imported."""
        rows: list[tuple[str, str]] = []
        names = self.list_commands(ctx)
        added = self._added() if set(names) - set(self._own(ctx)) else {}
        for name in names:
            own_command = self.commands.get(name)
            short = own_command.get_short_help_str(LENGTH) if own_command else ""
            rows.append((name, self.lazy[name][1] if name in self.lazy else short or self._summary(name, added[name])))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _summary(self, name: str, entries: list[Entry]) -> str:
        """Of the command itself, else of those below it; from their sources."""
        leaves = [e for e in entries if e.name == self._below(name)]
        return summary_of(leaves or entries)

    def groups(self, ctx: click.Context) -> dict[str, click.Command | None]:
        """Own commands, and groups that only hold commands of distributions; none of a distribution is imported."""
        added = [name for name, entries in self._added().items() if all(e.name != self._below(name) for e in entries)]
        return {name: self.get_command(ctx, name) for name in [*self.lazy, *added]}

    def _below(self, name: str) -> str:
        return f"{self.path}.{name}".removeprefix(".")

    def _added(self) -> dict[str, list[Entry]]:
        """Name of the next word -> entries at or below it."""
        entries_by_word: dict[str, list[Entry]] = {}
        for entry in command_entries():
            if entry.name.startswith(self._below("")):
                entries_by_word.setdefault(entry.name.removeprefix(self._below("")).split(".")[0], []).append(entry)
        return entries_by_word


def opened(command: click.Command, path: str) -> click.Command:
    """A plain group as one that takes commands of distributions; its choices name the nearest for a mistyped one."""
    for parameter in command.params:
        if type(parameter.type) is click.Choice and parameter.type.case_sensitive:
            parameter.type = Choice(parameter.type.choices)
    if type(command) is not click.Group:
        return command
    options = ("params", "callback", "help", "epilog", "short_help", "context_settings", "no_args_is_help", "hidden")
    attributes: dict[str, Any] = {name: getattr(command, name) for name in options}
    return OpenGroup(command.name, commands=command.commands, path=path, **attributes)


def command_entries(disabled: Collection[str] | None = None) -> list[Entry]:
    """What installed distributions declare, sorted; nothing is imported."""
    return entries_of(GROUP, disabled_distributions() if disabled is None else disabled)


def load(entries: list[Entry], path: str) -> click.Command:
    """Import one command."""
    words = path.replace(".", " ")
    if len(entries) > 1:
        raise PluginError(
            f"`rlhf {words}` is claimed by {len(entries)} distributions",
            where=", ".join(f"{e.distribution} {e.version}" for e in entries),
            fix="rlhf plugins disable DISTRIBUTION",
        )
    command = load_entry(entries[0], f"`rlhf {words}`", "install what it needs, or reinstall it")
    if not isinstance(command, click.Command):
        raise PluginError(
            f"`rlhf {words}` is not a click command",
            where=entries[0].where,
            why=f"it is {command!r}",
            fix="point the entry point at a function decorated with @click.command()",
        )
    return command


def summary_of(entries: list[Entry]) -> str:
    """What the commands of a group without a text do: its one, or their names. Example: ``list, show (acme-runs)``"""
    names = ", ".join(dict.fromkeys(entry.name.rpartition(".")[2] for entry in entries))
    text = description(entries[0].value) if len(entries) == 1 else names
    return f"{text} ({', '.join(sorted({entry.distribution for entry in entries}))})".strip()


def command_problem(root: click.Command, entry: Entry) -> RlhfError | None:
    """Why a command cannot be called; None if it can."""
    *groups, last = entry.name.split(".")
    ctx, group, path = click.Context(root), root, list[str]()
    try:
        for word in groups:
            inner = group.get_command(ctx, word) if isinstance(group, OpenGroup) else None
            if inner is None:
                break
            group, path = inner, [*path, word]
        if not isinstance(group, OpenGroup) or len(path) < len(groups):
            return _lost(entry, f"`rlhf {' '.join(path)}` takes no commands of plugins")
        if group.has_own(ctx, last):
            return _lost(entry, f"`rlhf {' '.join([*path, last])}` is there already and cannot be replaced")
        group.get_command(ctx, last)
    except RlhfError as error:
        return error
    return None


def lost_command(root: click.Command, words: Sequence[str]) -> RlhfError | None:
    """Why the command that was typed is not found, if an installed distribution declares it."""
    typed = [word for word in words if not word.startswith("-")]
    for entry in command_entries():
        name = entry.name.split(".")
        if len(name) > 1 and typed[: len(name)] == name:
            return command_problem(root, entry)
    return None


def _lost(entry: Entry, why: str) -> PluginError:
    return PluginError(
        f"the command `rlhf {entry.name.replace('.', ' ')}` cannot be called",
        where=f"{entry.distribution} {entry.version}, entry point {entry.name} = {entry.value}",
        why=why,
        fix="give the entry point another name, at the top or below a group",
    )
