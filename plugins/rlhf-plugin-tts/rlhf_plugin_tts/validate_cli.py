"""`rlhf tts validate`: what features and rewards are worth against ratings."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli import check_output, chosen_reward, context_of, emit_json, open_registry
from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError, write_json

if TYPE_CHECKING:
    import numpy as np

    from rlhf_core.config import BuildContext, ComponentConfig
    from rlhf_plugin_tts.rows import RatedClip
    from rlhf_plugin_tts.validation import Floats


@click.command()
@click.option("--clips", "file", required=True, metavar="FILE", help="Rows with audio and a rating.")
@click.option("--reference", metavar="COLUMN", help="The rating: of listeners, or an automatic MOS. Default: mos, ...")
@click.option("--group", metavar="COLUMN", help="Speaker, engine or text. Default: group, engine, speaker, stimulus.")
@click.option(
    "--reward", "names", multiple=True, metavar="NAME", help="Validate this reward and its parts. Repeatable."
)
@click.option("--set", "settings", multiple=True, metavar="NAME:a.b=c", help="One setting of a reward. Repeatable.")
@click.option("--features/--no-features", default=True, help="Validate the acoustic features.")
@click.option("--keep", type=click.FloatRange(0, 1), default=0.10, show_default=True, help="Keep |rho| above it.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write everything as JSON.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def validate(file: str, output: Path | None, as_json: bool, **options: Any) -> None:
    """Compare features and rewards with ratings: rank correlation, what to keep, ablation, weights on held-out pairs.

    \b
    rlhf tts validate --clips rated.jsonl
    rlhf tts validate --clips rated.jsonl --reference mos --group engine --reward dnsmos
    rlhf tts validate --clips rated.jsonl --no-features --reward speech --output validation.json
    """
    from rlhf_plugin_tts.rows import read_rated
    from rlhf_plugin_tts.validate_table import print_report

    features = options["features"]
    if not features and not options["names"]:
        raise ConfigError("there is nothing to validate", fix="--features, or --reward NAME")
    check_output(output, file)
    clips = read_rated(file, options["reference"], options["group"])
    rewards = select(options["names"], options["settings"], file, options["seed"])
    steps = len(clips) * (len(rewards) + features)
    with click.progressbar(length=steps, label="clips", file=sys.stderr) as bar:
        columns = measure_columns(clips, rewards, features, bar.update)
    if all(value != value for column in columns.values() for value in column):
        raise DatasetError("nothing could be measured: no clip can be read", where=file, fix="correct 'audio'")
    report = validated(columns, clips, options["keep"], options["seed"])
    if output is not None:
        write_json(output, report)
    if as_json:
        emit_json(report)
    else:
        print_report(report)
        if output is not None:
            click.echo(f"written: {output}")


def select(
    names: Sequence[str], settings: Sequence[str], file: str, seed: int
) -> dict[str, tuple[ComponentConfig, BuildContext]]:
    """Name -> (Config, context) of each reward; every one is checked before the first is built."""
    registry = open_registry()
    settings_of: dict[str, list[str]] = {name: [] for name in names}
    for text in settings:
        name, colon, setting = text.partition(":")
        if not colon and len(names) == 1:
            name, setting = names[0], text
        if name not in settings_of:
            raise ConfigError(f"--set {text} belongs to no reward", fix=f"--set {names[0] if names else 'NAME'}:a.b=c")
        settings_of[name].append(setting)
    selected = {}
    for name in names:
        config = chosen_reward(registry, None, name, settings_of[name])
        ctx = context_of(registry, seed=seed, dataset={"name": "jsonl", "path": file}, reward=config)
        config.preflight(ctx)
        selected[name] = (config, ctx)
    return selected


def measure_columns(
    clips: Sequence[RatedClip],
    rewards: Mapping[str, tuple[ComponentConfig, BuildContext]],
    features: bool,
    progress: Callable[[int], None] = lambda n: None,
) -> dict[str, Floats]:
    """Name -> values of all clips, NaN where missing: features, each reward, and its parts as ``reward/part``."""
    import numpy as np

    from rlhf_core.rewards import score_samples
    from rlhf_plugin_tts.audio import ClipError, read_clip
    from rlhf_plugin_tts.faults import MEASURES
    from rlhf_plugin_tts.features import Analysis
    from rlhf_plugin_tts.rows import sample_of

    columns: dict[str, np.ndarray] = {}
    if features and any(clip.path is not None for clip in clips):
        columns = {name: np.full(len(clips), np.nan) for name in MEASURES}
        for i, clip in enumerate(clips):
            progress(1)
            if clip.path is None:
                continue
            try:
                analysis = Analysis(read_clip(clip.path))
            except ClipError:
                continue
            for name, column in columns.items():
                column[i] = MEASURES[name](analysis)
    samples = [sample_of(clip) for clip in clips]
    for label, (config, ctx) in rewards.items():
        with ctx.open("reward", config) as reward:
            scores = score_samples(reward, samples, f"reward '{label}'")
        progress(len(samples))
        columns[label] = np.array([np.nan if s.value is None else s.value for s in scores], float)
        for part in sorted({part for score in scores for part in score.parts}):
            values = np.array([s.parts.get(part, np.nan) for s in scores], float)
            labels = (columns[name] for name in (label, part) if name in columns)
            if not any(np.array_equal(values, column, equal_nan=True) for column in labels):
                columns[f"{label}/{part}"] = values
    return columns


def validated(columns: Mapping[str, Floats], clips: Sequence[RatedClip], keep: float, seed: int) -> dict[str, Any]:
    import numpy as np

    from rlhf_core.data import json_values
    from rlhf_plugin_tts.validation import correlations
    from rlhf_plugin_tts.weighting import study

    reference = np.array([clip.reference for clip in clips])
    groups = [clip.group for clip in clips]
    table = correlations(columns, reference, groups, keep, seed)
    chosen = {name: columns[name] for name, row in table.items() if row["kept"]}
    decisive = "within" if len(set(groups)) > 1 else "pooled"
    start = {name: math.copysign(1 / len(chosen), table[name][decisive]) for name in chosen}
    report = {
        "clips": len(clips),
        "groups": len(set(groups)),
        "keep": keep,
        "decided_by": decisive,
        "columns": table,
        "weighting": study(chosen, start, reference, groups, seed) if chosen else None,
    }
    return json_values(report)
