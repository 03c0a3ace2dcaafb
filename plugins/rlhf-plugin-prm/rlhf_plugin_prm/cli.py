"""`rlhf data perturb` and `rlhf reward first-error`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--input", "file", required=True, metavar="FILE", help="GSM8K's rows: question, and answer with #### X.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="JSON lines to write.")
@click.option(
    "--carried",
    type=click.IntRange(0, 8),
    default=1,
    show_default=True,
    help="Wrong solutions per problem that go on from the wrong number, to a wrong answer.",
)
@click.option(
    "--slip",
    type=click.IntRange(0, 8),
    default=0,
    show_default=True,
    help="Wrong solutions per problem that do not, and end in the right answer.",
)
@click.option("--problems", type=click.IntRange(1), metavar="N", help="Only so many problems, drawn by the seed.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True)
def perturb(file: str, output: Path, carried: int, slip: int, problems: int | None, seed: int) -> None:
    """Build solutions with labelled steps: change one computed number; its step and all later ones are wrong.

    \b
    rlhf data perturb --input gsm8k/train.jsonl --output steps.jsonl
    rlhf train --algo prm --dataset steps.jsonl
    """
    import json
    import random
    from collections import Counter

    from rlhf_core.config import ConfigError
    from rlhf_core.data import JsonlConfig, write_text
    from rlhf_plugin_prm.data.config import Gsm8kStepsConfig
    from rlhf_plugin_prm.data.sources import Gsm8kSource
    from rlhf_plugin_prm.evaluate import nowhere

    if output.is_dir():
        raise ConfigError(f"--output {output} is a folder", fix=f"name a file: {output / 'steps.jsonl'}")
    config = Gsm8kStepsConfig(path=file, carried=carried, slip=slip, seed=seed)
    config.preflight(nowhere())
    published = JsonlConfig(path=file).build(nowhere())
    chosen = list(enumerate(published.rows("train")))
    if problems is not None:
        chosen = random.Random(f"problems/{seed}").sample(chosen, min(problems, len(chosen)))
    gsm8k = Gsm8kSource(config, published)
    rows = [row for n, row_in in chosen for row in gsm8k.solutions(row_in, "train", n)]
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    kinds = Counter(row["kind"] for row in rows)
    click.echo(
        f"{len(rows)} solutions of {len(chosen)} problems ({', '.join(f'{k} {n}' for k, n in kinds.items())}), "
        f"{sum(len(row['steps']) for row in rows)} steps, written to {output}"
    )


@click.command("first-error")
@click.option("--model", "folder", required=True, metavar="FOLDER", help="What --algo prm or orm wrote to RUN/final.")
@click.option(
    "--input",
    "file",
    required=True,
    metavar="FILE",
    help="ProcessBench's rows, or prompt with steps and labels (or label).",
)
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="A step below it is called wrong."
)
@click.option("--limit", type=click.IntRange(2), metavar="N", help="Only the first N solutions.")
@click.option(
    "--max-length",
    type=click.IntRange(2),
    help="Most tokens; default: as in training. Longer solutions are left out; more than a tenth is an error.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def first_error(
    folder: str, file: str, threshold: float, limit: int | None, max_length: int | None, as_json: bool
) -> None:
    """Find the first wrong step of each solution: F1 as ProcessBench defines it.

    At the threshold you give, at the best one (which has seen the labels, as in the paper), with the threshold of the
    other half, and what scores that know nothing reach. An outcome model is read at every step.

    \b
    rlhf reward first-error --model runs/prm/final --input processbench/gsm8k.json.gz
    """
    from rlhf_core.cli import emit_json
    from rlhf_plugin_prm.evaluate import evaluate

    result = evaluate(folder, file, threshold, limit, max_length)
    if as_json:
        emit_json(result)
        return
    click.echo(f"{result['solutions']} solutions, {result['with_error']} with an error; model of {result['target']}")
    for name in (n for n in ("at_threshold", "best", "crossed") if n in result):
        row = result[name]
        click.echo(
            f"{name:13} F1 {row['f1']:.3f}  found {row['errors_found']:.3f}  passed {row['passed']:.3f}  threshold "
            f"{row['threshold']:.3f}"
        )
    chance = result["chance"]
    click.echo(f"{'chance':13} F1 {'-' if chance is None else f'{chance:.3f}'}")
    if result["unscored"]:
        click.echo(f"{result['unscored']} more have no score (too long, or no finite number) and are left out")
