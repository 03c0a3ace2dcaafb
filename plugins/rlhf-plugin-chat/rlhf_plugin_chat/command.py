"""`rlhf chat`. Nothing heavy is imported before it is called."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.config import ConfigError, UserError

if TYPE_CHECKING:
    from rlhf_plugin_chat.conversation import Conversation


OPTIONS = {
    "path": "rlhf chat MODEL",
    "chat_template": "--chat-template",
    "prompt_format": "--prompt-format",
    "tool_format": "--tool-format",
}
"""Settings of a model that are given otherwise."""


@click.command(context_settings={"show_default": True})
@click.argument("model", default="pocket", metavar="[MODEL]")
@click.option("--compare", metavar="MODEL2", help="A second model that gets the same messages.")
@click.option("--system", default="", show_default=False, metavar="TEXT", help="System prompt.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="The same seed, the same answers.")
@click.option("--temperature", type=click.FloatRange(0), default=1.0, help="0 is greedy.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="1 is off.")
@click.option("--max-tokens", type=click.IntRange(1), default=256, help="Of an answer.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends an answer. Repeatable.")
@click.option("--chat-template", metavar="T", help="For a model without one: plain, chatml, or a Jinja file.")
@click.option(
    "--prompt-format",
    type=click.Choice(("auto", "chat", "raw")),
    help="Default: as the model's run wrote prompts, or the chat template if there is one.",
)
@click.option(
    "--tools",
    multiple=True,
    metavar="NAME|FILE",
    help="Let the model call a tool, an environment's tools, or the functions of a Python file. Repeatable.",
)
@click.option("--tool-format", metavar="F", help="How the model writes calls. Default: as its run read them, or auto.")
@click.option(
    "--max-turns",
    type=click.IntRange(1),
    default=8,
    help="Of the model for one message, with tools.",
)
@click.option(
    "--call-timeout",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    help="Seconds for a call; a late one is killed.",
)
@click.option(
    "--set",
    "model_settings",
    multiple=True,
    metavar="model.b=c",
    help="One setting of the models, such as model.chat_template_kwargs.enable_thinking=false. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON line for each answer.")
def chat(
    model: str,
    compare: str | None,
    chat_template: str | None,
    prompt_format: Any,
    tools: tuple[str, ...],
    tool_format: str | None,
    max_turns: int,
    call_timeout: float,
    as_json: bool,
    stop: tuple[str, ...],
    model_settings: tuple[str, ...],
    **settings: Any,
) -> None:
    """Talk to a model: a run, a checkpoint, a folder, a hub id, or pocket (default). /help lists what can be typed.

    Without a terminal every line of stdin is a message.

    \b
    rlhf chat runs/sft --system "Answer in one sentence."
    rlhf chat runs/sft --compare runs/grpo
    echo "What is 2 + 3?" | rlhf chat pocket --temperature 0
    rlhf chat M --tools calculator --tools my_tools.py
    """
    from rlhf_core.config import parse_settings
    from rlhf_plugin_chat.conversation import Conversation
    from rlhf_plugin_chat.screen import Columns, JsonScreen, Screen
    from rlhf_plugin_chat.talker import ChatModel, Settings
    from rlhf_plugin_chat.toolbox import Toolbox

    typed = sys.stdin.isatty()
    wide = typed and compare is not None and sys.stdout.isatty()
    screen = JsonScreen() if as_json else Columns() if wide else Screen()
    paths = [model] if compare is None else [model, compare]
    toolbox = None if not tools else Toolbox.chosen(tools, max_turns, call_timeout)
    sections = parse_settings(model_settings)
    of_model = sections.pop("model", {})
    keys = of_model if isinstance(of_model, dict) else ("",)
    wrong = [*sections, *(f"model.{key}".rstrip(".") for key in keys if not key or key in OPTIONS)]
    if wrong:
        raise ConfigError(
            f"--set {wrong[0]} has no effect here", fix=OPTIONS.get(wrong[0].partition(".")[2], "model.KEY=VALUE")
        )
    talkers = [
        ChatModel.load(path, chat_template, prompt_format, screen.note, toolbox, tool_format, **of_model)
        for path in paths
    ]
    conversation = Conversation(talkers, Settings(stop=stop, **settings), screen)
    try:
        _talk(conversation) if typed else _read(conversation)
    finally:
        for talker in talkers:
            talker.close()


def _talk(conversation: Conversation) -> None:
    """Lines of a terminal; what is wrong with one is said, and the next is asked for."""
    conversation.screen.note("/help lists commands, /quit or Ctrl-D leaves")
    for line in _typed():
        try:
            if not conversation.line(line):
                return
        except UserError as error:
            conversation.screen.note(f"error: {error}")


def _typed() -> Iterator[str]:
    with contextlib.suppress(ImportError):  # not on every platform
        import readline  # noqa: F401  # history and editing of what is typed
    while True:
        try:
            yield input("> ")
        except EOFError:
            print(file=sys.stderr)
            return


def _read(conversation: Conversation) -> None:
    """Lines of a file or a pipe; the first that is wrong ends it."""
    for number, line in enumerate(sys.stdin, 1):
        try:
            if not conversation.line(line):
                return
        except UserError as error:
            where = f"line {number} of stdin" + (f"; {error.where}" if error.where else "")
            raise ConfigError(error.what, where=where, why=error.why, fix=error.fix) from error
        except UnicodeDecodeError as error:
            raise ConfigError("stdin is not text", why=str(error), fix="it must be UTF-8") from error
