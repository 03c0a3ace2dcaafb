"""Entry point of the `rlhf` command: its own commands, and errors as one clear message."""

from __future__ import annotations

import sys
import traceback

import click

from rlhf_core._version import __version__
from rlhf_core.cli.common import set_up_process
from rlhf_core.cli.groups import OpenGroup
from rlhf_core.cli.visible import visible_output
from rlhf_core.plugins import component_calls as deadline
from rlhf_core.runs.launch.process_end import hard_exit, needs_hard_exit

COMMANDS = {
    "train": ("rlhf_core.cli.train:train", "Train a model: any algorithm, reward and loss that is installed."),
    "plugins": ("rlhf_core.cli.plugins:plugins", "List, inspect, check, create or switch off plugins."),
}
OF_PLUGINS = {
    "reward": "Score completions with a reward, and test rewards.",
    "data": "Check, make and filter training data. Accepted forms: docs/data.md.",
    "config": "Show, validate, translate or document configurations.",
}
"""Groups that only hold commands of plugins."""


@click.group(cls=OpenGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rlhf")
@click.option("--debug", is_flag=True, help="Show the traceback of a clear error too.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Post-train language models: one small core, everything else an installable plugin.

    Begin with: rlhf train --algo grpo --reward ensemble
    """
    ctx.obj = {"debug": debug}
    set_up_process()


for _name, _help in OF_PLUGINS.items():
    cli.add_command(OpenGroup(_name, path=_name, help=_help))


def main(argv: list[str] | None = None) -> None:
    """Run the command. Exit codes: 0 done, 1 the run failed, 2 the input was wrong, 130 interrupted."""
    try:
        with visible_output():
            _main(argv)
    except SystemExit as end:
        if argv is None and needs_hard_exit():
            hard_exit(end.code if isinstance(end.code, int) else 1)
        raise


def _main(argv: list[str] | None) -> None:
    from rlhf_core.types.errors import DeadlineExceeded, RlhfError

    deadline.owns_process = argv is None
    debug = "--debug" in (sys.argv if argv is None else argv)
    try:
        code = cli.main(args=argv, prog_name="rlhf", standalone_mode=False)
        raise SystemExit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort as error:  # click's name for Ctrl-C
        click.echo("interrupted", err=True)
        raise SystemExit(130) from error
    except click.ClickException as error:
        from rlhf_core.cli.groups import lost_command
        from rlhf_core.config.hints import USAGE_GROUP, KeyHints, answers

        words = sys.argv[1:] if argv is None else argv
        hint = _missing(error) or next(answers(USAGE_GROUP, error, words, KeyHints), "")
        if hint and isinstance(error, click.NoSuchOption):  # without click's own guesses
            click.UsageError(error.message, error.ctx).show()
        else:
            error.show()
        if hint:
            click.echo(hint, err=True)
        if (lost := lost_command(cli, words)) is not None:
            click.echo(f"note: {lost}", err=True)
        raise SystemExit(2) from error
    except RlhfError as error:
        if debug:
            traceback.print_exc()
        click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(str(error), err=True)
        if argv is None and isinstance(error, DeadlineExceeded):
            hard_exit(error.exit_code)  # what hangs may be a thread, and the interpreter would wait for it
        raise SystemExit(error.exit_code) from error
    except BrokenPipeError as error:
        raise SystemExit(0) from error
    except Exception as error:
        traceback.print_exc()
        name = type(error).__name__
        click.echo(f"\nrlhf failed unexpectedly ({name}). `rlhf doctor` checks the installation.", err=True)
        raise SystemExit(1) from error


def _missing(error: click.ClickException) -> str:
    """The help of an option that is required."""
    if isinstance(error, click.MissingParameter) and isinstance(option := error.param, click.Option) and option.help:
        return f"{option.opts[0]} {option.make_metavar(error.ctx or click.Context(cli))}: {option.help}"
    return ""


if __name__ == "__main__":
    main()
