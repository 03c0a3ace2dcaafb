"""`rlhf reward ablate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli import say

if TYPE_CHECKING:
    from rlhf_plugin_composite.ablation import Scored, Weighing


@click.command()
@click.option(
    "--input",
    "file",
    required=True,
    metavar="FILE",
    help="Responses as `rlhf reward score --output` writes them, or with prompt, completion, scores.",
)
@click.option("--parts", metavar="A,B", help="Components to weigh; default all.")
@click.option("--label", metavar="COLUMN", help="Gold score or label of each response, for rank correlation.")
@click.option(
    "--weights",
    "weight_options",
    multiple=True,
    metavar="A=0.7,B=0.3",
    help="One weighting. Repeatable; the first is the baseline. Default: a grid.",
)
@click.option("--steps", type=click.IntRange(1), default=4, show_default=True, help="Grid of weights in steps of 1/N.")
@click.option(
    "--normalise",
    "normalise_options",
    multiple=True,
    metavar="A=sigmoid",
    help="Component to rescale over these responses first: none, sigmoid, zscore. Repeatable.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON here.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def ablate(
    file: str,
    parts: str | None,
    label: str | None,
    weight_options: tuple[str, ...],
    steps: int,
    normalise_options: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Weigh the components of scored responses anew, before anything is trained.

    For every weighting: rank correlation with the label, and how the best response of each prompt changes.

    \b
    rlhf reward score --reward composite --set parts.rules.reward=programmatic ... --input a.jsonl --output scored.jsonl
    rlhf reward ablate --input scored.jsonl --label gold
    rlhf reward ablate --input scored.jsonl --weights taste=1 --weights taste=0.7,rules=0.3
    """
    from rlhf_core.cli import emit_json
    from rlhf_core.data import read_rows, write_json
    from rlhf_plugin_composite.ablation import grid, read_scored, rescale, weigh
    from rlhf_plugin_composite.config import HollowCheck
    from rlhf_plugin_composite.rules import hollow_pattern

    names = [n.strip() for n in (parts or "").split(",") if n.strip()]
    scored = read_scored(read_rows(file).rows, names, label, file)
    scored = rescale(
        scored, {name: method for text in normalise_options for name, method in pairs_of(text, "--normalise")}
    )
    weightings = [weighting(text, scored.names) for text in weight_options] or grid(scored.names, steps)
    rows = weigh(scored, weightings, hollow_pattern(HollowCheck()))
    result = {"file": file, **facts(scored), "label": label, "weightings": [row.to_json() for row in rows]}
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, result)
    if as_json:
        emit_json(result)
        return
    show(scored, rows)
    if output is not None:
        say(f"written to {output}")


def facts(scored: Scored) -> dict[str, Any]:
    return {
        "components": scored.names,
        "responses": len(scored.texts),
        "left_out": scored.left_out,
        "prompts": len(set(scored.prompts)),
    }


def pairs_of(text: str, option: str) -> list[tuple[str, str]]:
    from rlhf_core.config import ConfigError

    pairs = [piece.partition("=") for piece in text.split(",")]
    if any(not name.strip() or not value.strip() for name, _, value in pairs):
        raise ConfigError(f"{option} '{text}' is not of the form a=x,b=y", fix="name=value, separated by commas")
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def weighting(text: str, names: Sequence[str]) -> dict[str, float]:
    import math

    from rlhf_core.config import ConfigError

    weights: dict[str, float] = {}
    for name, value in pairs_of(text, "--weights"):
        if name not in names:
            raise ConfigError(
                f"--weights names '{name}', which is not a component",
                why=f"components: {', '.join(names)}",
                fix="check --weights and --parts",
            )
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = math.nan
        if not math.isfinite(weights[name]):
            raise ConfigError(f"--weights {name}={value} is not a number", fix=f"for example --weights {name}=0.5")
    if not any(weights.values()):
        raise ConfigError(f"--weights '{text}' weighs nothing", fix="give one component another weight than 0")
    return {n: weights.get(n, 0.0) for n in names}


def show(scored: Scored, rows: Sequence[Weighing]) -> None:
    from rlhf_core.cli import table

    first = rows[0]
    if scored.label_N is not None:
        rows = [first, *sorted(rows[1:], key=lambda r: -(r.spearman if r.spearman is not None else -2))]
    columns = {
        "mean": "mean",
        "std": "std",
        "spearman": "spearman",
        "agree": "agreement",
        "changed": "changed",
        "label": "chosen_label",
        "words": "chosen_words",
        "hollow": "chosen_hollow",
    }
    lines: list[list[str]] = []
    for row in rows:
        weights = [f"{row.weights[name]:g}" for name in scored.names]
        lines.append(weights + [figure(getattr(row, field)) for field in columns.values()])
    table((*scored.names, *columns), lines)
    left_out = f"; {scored.left_out} rows lack a score and are left out" if scored.left_out else ""
    say(
        f"\n{len(scored.texts)} responses to {len(set(scored.prompts))} prompts{left_out}.\n"
        "mean, std: the weighted sum; spearman, agree: with the label, over all responses and over any two of "
        "one prompt;\nchanged: prompts whose best response is another than in the first row; label, words, "
        "hollow: of the best responses."
    )


def figure(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}"
