"""What the lines that a user types do: messages and commands that begin with a slash."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.cli import check_output
from rlhf_core.config import ConfigError
from rlhf_core.data import write_text
from rlhf_plugin_chat.talker import ChatModel, Settings

if TYPE_CHECKING:
    from rlhf_plugin_chat.screen import Screen

HELP = Path(__file__).with_name("help.txt").read_text().rstrip()


class Conversation:
    """One user and one or two models that get the same messages."""

    def __init__(self, talkers: Sequence[ChatModel], settings: Settings, screen: Screen) -> None:
        self.talkers, self.settings, self.screen = talkers, settings, screen
        self.drawn = 0
        """Answers since the seed was set; decides the random numbers of the next."""
        self.last: str | None = None
        self.commands: dict[str, Callable[[str], None]] = {
            "/system": self._system,
            "/seed": lambda text: self._set("seed", int, text, lambda v: v >= 0),
            "/temperature": lambda text: self._set("temperature", float, text, lambda v: 0 <= v < float("inf")),
            "/top-p": lambda text: self._set("top_p", float, text, lambda v: 0 < v <= 1),
            "/max-tokens": lambda text: self._set("max_tokens", int, text, lambda v: v >= 1),
            "/reset": lambda text: self._reset(),
            "/retry": lambda text: self._retry(),
            "/save": self._save,
            "/show": lambda text: self._show(),
            "/help": lambda text: self.screen.note(HELP),
        }

    def line(self, text: str) -> bool:
        text = text.strip()
        name, _, rest = text.partition(" ")
        if name in ("/quit", "/exit"):
            return False
        if text.startswith("//"):
            self.say(text[1:])
        elif text.startswith("/"):
            if name not in self.commands:
                commands = [*self.commands, "/quit"]
                close = get_close_matches(name, commands, n=1)
                near = f"did you mean {close[0]}?" if close else f"one of {', '.join(commands)}"
                raise ConfigError(
                    f"there is no command '{name}'", fix=f"{near} A message that begins so is typed /{name}"
                )
            self.commands[name](rest.strip())
        elif text:
            self.say(text)
        return True

    def say(self, message: str) -> None:
        self.last = message
        with self.screen.turn(message, [t.name for t in self.talkers]) as writers:
            for talker, writer in zip(self.talkers, writers, strict=True):
                try:
                    writer.end(talker.answer(message, self.settings, self.drawn, writer.write, writer.turn))
                except KeyboardInterrupt:
                    writer.end(None)
        self.drawn += 1

    def _system(self, text: str) -> None:
        self.settings = replace(self.settings, system=text)
        self._reset()

    def _set(self, name: str, kind: Callable[[str], Any], text: str, allowed: Callable[[Any], bool]) -> None:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise ConfigError(f"/{name.replace('_', '-')} {text}: this cannot be", fix="/help shows what can")
        self.settings = replace(self.settings, **{name: value})
        self.drawn = 0 if name == "seed" else self.drawn
        self.screen.note(f"{name} {value}")

    def _reset(self) -> None:
        for talker in self.talkers:
            talker.forget()
        self.drawn, self.last = 0, None
        self.screen.note("a new conversation")

    def _retry(self) -> None:
        if self.last is None:
            raise ConfigError("there is no message to answer again", fix="type one")
        for talker in self.talkers:
            talker.forget_last()
        self.say(self.last)

    def _save(self, name: str) -> None:
        if not name or not self.talkers[0].turns:
            what = "there is nothing to save" if name else "/save needs the name of a file"
            raise ConfigError(what, fix="/save FILE, after an answer")
        file = Path(name).expanduser()
        check_output(file, option="/save")
        system = self.settings.system
        rows = [
            {"messages": list(t.messages(system)), **({"tools": t.tools} if t.tools else {}), "model": t.name}
            for t in self.talkers
        ]
        write_text(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        self.screen.note(f"saved: {file}")

    def _show(self) -> None:
        rows = {"models": ", ".join(t.name for t in self.talkers), **self.settings.__dict__}
        self.screen.note("\n".join(f"{key}: {value}" for key, value in rows.items()))
