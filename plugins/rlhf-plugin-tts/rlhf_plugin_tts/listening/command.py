"""`rlhf tts listen`."""

from __future__ import annotations

from pathlib import Path

import click

from rlhf_core.cli import check_output
from rlhf_core.config import ConfigError

PORT = 8421


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN] [OTHER]")
@click.option(
    "--pairs", "file", metavar="FILE", help="Judge the pairs of a file instead, such as `rlhf data speech`'s."
)
@click.option(
    "--listener", default="listener", show_default=True, metavar="NAME", help="Who listens; each has an order."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where answers go. Default: listening/ in the run, or FILE-listening beside the file.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one.")
@click.option("--open/--no-open", "opens", default=True, help="Open a browser where there is one.  [default: open]")
def listen(runs: tuple[str, ...], file: str | None, listener: str, output: Path | None, port: int, opens: bool) -> None:
    """Compare sounds blind, in a browser on this machine; every answer is written at once.

    Of a run: held-out prompts before and after training, and the best and the worst scored completion of a prompt. Of
    two runs: their last sounds of the held-out prompts. FOLDER/pairs.jsonl holds preference pairs, which rewards are
    trained on; FOLDER/answers.jsonl every answer, also where there was no difference. The same command goes on where
    it was ended.

    \b
    rlhf tts listen runs/speech
    rlhf tts listen runs/grpo runs/dpo --listener anna
    rlhf tts listen --pairs pairs.jsonl
    """
    from rlhf_plugin_dashboard.serve import serve_site
    from rlhf_plugin_tts.listening.answers import PAIRS, Answers
    from rlhf_plugin_tts.listening.site import ListeningSite
    from rlhf_plugin_tts.listening.trials import trials_of_pairs, trials_of_runs

    if bool(runs) == bool(file) or len(runs) > 2:
        raise ConfigError(
            "give a run, two runs, or --pairs FILE", why=f"got {len(runs)} runs{' and --pairs' if file else ''}"
        )
    if not listener.strip():
        raise ConfigError("--listener is empty", fix="give a name, or leave it out")
    if file is not None:
        trials, folder = trials_of_pairs(file), Path(file).with_name(f"{Path(file).stem}-listening")
    else:
        from rlhf_plugin_report.stored import open_run

        trials, folder = trials_of_runs(runs), open_run(next(iter(runs))).path / "listening"
    folder = output or folder
    check_output(folder.absolute().parent, folder=True)
    answers = Answers(folder, trials, listener.strip())
    click.echo(f"{len(trials)} comparisons, {len(answers.of_listener())} answered by {answers.listener}")
    serve_site(ListeningSite(answers), port, opens, click.echo, "listen", f"answers are in {folder}")
    pairs = answers.write_pairs()  # the folder may hold those of another comparison
    click.echo(f"{len(answers.latest())} answers, {pairs} preference pairs: {folder / PAIRS}")
    if pairs:
        click.echo(f"next: rlhf tts train-reward --pairs {folder / PAIRS} --output taste")
