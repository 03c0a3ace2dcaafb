"""What a command, an option or a word that `rlhf` does not know stands for (entry point ``rlhf.usage_hints``)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import OpenGroup
from rlhf_core.config import Registry, RunConfig, UserError

WORDS: Mapping[str, Mapping[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
COMMANDS, SETTINGS, OPTIONS, OTHERS, KINDS = (
    WORDS[name] for name in ("commands", "settings", "options", "others", "kinds")
)
DATA = (".jsonl", ".json", ".parquet", ".jsonl.gz")


def hint(error: click.ClickException, words: Sequence[str], key_hints: Any) -> str:
    """One or more lines on what was meant, "" if nobody knows.

    Args:
        error: click's.
        words: the command line.
        key_hints: of a registry and chosen components, what is known of a setting's name.
    """
    ctx = getattr(error, "ctx", None)
    if ctx is None:
        return ""
    if unknown := re.fullmatch(r"no such command '(.*)'\.", error.message):
        return _command(unknown[1], ctx)
    options = {option for parameter in ctx.command.params for option in parameter.opts}
    asks = _Settings(options, words, key_hints)
    if isinstance(error, click.NoSuchOption):
        return asks.of_option(error.option_name)
    extra = re.match(r"Got unexpected extra arguments? \((.*)\)", error.message)
    if extra is None or "--set" not in options:
        return ""
    return "\n".join(filter(None, map(asks.of_word, extra[1].split())))


def _command(word: str, ctx: click.Context) -> str:
    """Example: ``rlhf train --algo sft`` for ``sft``."""
    if not isinstance(ctx.command, OpenGroup) or ctx.command.path:
        return ""
    if word in COMMANDS:
        return COMMANDS[word]
    if any(word == entry.name for entry in Registry().entries("trainer")):
        return f"rlhf train --algo {word}"
    groups = {name: group for name, group in ctx.command.groups(ctx).items() if isinstance(group, click.Group)}
    below = [name for name, group in groups.items() if word in group.list_commands(click.Context(group))]
    return " or ".join(f"rlhf {name} {word}" for name in below)


class _Settings:
    """Looks up what a command line says in place of a setting; ``options`` are those of the command."""

    def __init__(self, options: Iterable[str], words: Sequence[str], key_hints: Any) -> None:
        self.options, self.words, self.key_hints = set(options), words, key_hints

    def of_option(self, option: str) -> str:
        name = option.lstrip("-")
        dashed = f"--{name.replace('_', '-')}"
        other = OTHERS.get(name.replace("-", "_"), "")
        if near := next((o for o in (dashed, other) if o in self.options), ""):
            return f"did you mean {near}?"
        return self._of_name(name.replace("-", "_"), value_of(self.words, option) or "VALUE")

    def of_word(self, word: str) -> str:
        """A word without dashes: a setting as Hydra writes it, a file, an algorithm."""
        key, equals, value = word.partition("=")
        if equals:
            return self._of_name(key.lstrip("+"), value)
        if word.endswith((".yaml", ".yml")):
            return f"did you mean --config {word}?"
        if word.endswith(DATA):
            return f"did you mean --dataset {word}?"
        if any(word in (entry.name, entry.qualified) for entry in Registry().entries("trainer")):
            return f"did you mean --algo {word}?"
        return f"did you mean --model {word}?" if Path(word).exists() else ""

    def _of_name(self, name: str, value: str) -> str:
        """Options first, then settings, then what a peer's sentence says."""
        if "." in name and name.split(".")[0] in RunConfig.model_fields:
            return self._written(name, value)
        registry, unanswered = Registry(), ""
        for chosen in _chosen(registry, self.words):
            for called in dict.fromkeys((name, SETTINGS.get(name, name))):
                keys, sentence = self._asked(registry, chosen, called, value)
                lines = list(dict.fromkeys(filter(None, (self._written(key, value) for key in keys))))
                if lines:
                    note = re.search(r" here( \(.*\))$", sentence)
                    return " or ".join(lines).replace("? or did you mean", ", or") + (note[1] if note else "")
                unanswered = unanswered or sentence
        if unanswered or not {"--set", "--reward"} <= self.options:
            return unanswered if "--set" in self.options else ""
        return f"did you mean {KINDS[name].format(name=value)}?" if name in KINDS else ""

    def _asked(self, registry: Registry, chosen: Mapping[str, Any], name: str, value: str) -> tuple[list[str], str]:
        """Our keys for a name, and the sentence that names them: settings called so, where they are wanted, then
        peers'."""
        if name in OPTIONS:
            return [name], ""
        hints = self.key_hints(registry, chosen)
        sentence = hints.places((name,)) if "--set" in self.options else ""
        if sentence:
            return re.findall(r"'([a-z_0-9.]+)'", sentence), sentence
        sentence = hints((name,), value)
        return re.findall(r"\bis ([a-z_0-9.]+) here\b", sentence), sentence

    def _written(self, key: str, value: str) -> str:
        """How a setting is written on this command line, "" if it takes none."""
        short = OPTIONS.get(key, f"--{key.rpartition('.')[2].replace('_', '-')}")
        if short in self.options:
            return f"did you mean {short} {value}?"
        return f"did you mean --set {key}={value}?" if "--set" in self.options else ""


def _chosen(registry: Registry, words: Sequence[str]) -> list[dict[str, dict[str, str]]]:
    """The components that the command line names, for their settings; of no algorithm, one of either kind."""
    named = {"trainer": value_of(words, "--algo"), "reward": value_of(words, "--reward")}
    chosen: dict[str, dict[str, str]] = {}
    for kind, name in named.items():
        try:
            registry.load(kind, name)
        except UserError:
            continue
        chosen[kind] = {"name": name}
    if "trainer" in chosen:
        return [chosen]
    installed = {entry.name for entry in registry.entries("trainer")}
    return [{**chosen, "trainer": {"name": name}} for name in ("grpo", "sft") if name in installed] or [chosen]


def value_of(words: Sequence[str], option: str) -> str:
    """What the command line gives an option, "" if nothing.

    Example:
        >>> value_of(["--algo", "sft", "--lr=1e-4"], "--lr"), value_of(["--algo", "sft"], "--algo")
        ('1e-4', 'sft')
    """
    for word, following in zip(words, [*words[1:], ""]):
        if word == option:
            return "" if following.startswith("--") else following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""
