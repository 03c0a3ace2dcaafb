"""`rlhf eval compare`."""

from __future__ import annotations

from pathlib import Path

import click

from rlhf_core.cli import say


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Compare two evaluations prompt by prompt: is SECOND better than FIRST, or is it chance?

    Means over the samples of each prompt, the 95 % interval of their difference over prompts, and McNemar's exact
    test on each prompt's first completion.

    \b
    rlhf eval compare evals/gsm8k-plain-base-1a2b3c4d evals/gsm8k-plain-tuned-5e6f7a8b
    """
    from rlhf_core.cli import emit_json, table
    from rlhf_eval.compare import compare as compared
    from rlhf_eval.compare import verdict
    from rlhf_eval.show import interval
    from rlhf_eval.store import read

    stored = [read(path) for path in (first, second)]
    comparison = compared(*stored)
    if as_json:
        emit_json(comparison)
        return
    table(
        ("folder", "what", "right"),
        (
            (str(evaluation.path), evaluation.title, interval(mean))
            for evaluation, mean in zip(stored, comparison["mean"])
        ),
    )
    say(
        f"\n{comparison['prompts']} prompts in both ({comparison['only_first']} only in {first}, "
        f"{comparison['only_second']} only in {second})"
    )
    say(f"{second} minus {first}: {interval(comparison['difference'])}")
    flips = comparison["mcnemar"]
    say(
        f"first completions of {flips['prompts']} prompts: {flips['lost']} right only in {first}, "
        f"{flips['gained']} only in {second}; McNemar p = {flips['p']:.3g}"
    )
    for change in ("lost", "gained"):
        if flips[f"examples_{change}"]:
            say(f"  {change}: {', '.join(flips[f'examples_{change}'])}")
    for row in comparison["settings"]:
        both = f"{row['first']!r:.60} in {first}, {row['second']!r:.60} in {second}"
        say(f"warning: {row['key']} differs: {both}", fg="yellow")
    say(verdict(comparison))
