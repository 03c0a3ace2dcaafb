"""`rlhf tts train-reward`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import check_output, emit_json
from rlhf_core.config import ConfigError
from rlhf_plugin_tts.store import REWARD_OF


@click.command(context_settings={"show_default": True})
@click.option("--pairs", "file", required=True, metavar="FILE", help="Rows with chosen_audio and rejected_audio.")
@click.option("--heldout-pairs", metavar="FILE", help="Tested on these. Default: groups of pairs are set aside.")
@click.option(
    "--heldout-fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    help="Of the pairs, set aside so that no clip is on both sides.",
)
@click.option("--encoder", metavar="MODEL", help="A frozen wav2vec 2.0 in place of acoustic features.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="Where it goes.")
@click.option("--hidden", type=click.IntRange(0), default=32, help="Hidden units; 0 is linear.")
@click.option("--epochs", type=click.IntRange(1), default=20)
@click.option("--batch-size", type=click.IntRange(1), default=16)
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True), default=3e-3)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0)
@click.option("--random-labels", is_flag=True, help="A control: train on labels drawn by chance.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def train_reward(
    file: str,
    heldout_pairs: str | None,
    heldout_fraction: float,
    encoder: str | None,
    output: Path,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a reward model on pairs of clips; print its accuracy on pairs whose clips are not in its training data.

    \b
    rlhf tts train-reward --pairs pairs.jsonl --output taste
    rlhf reward score --reward audio_feature_model --set path=taste --input clips.jsonl
    """
    from rlhf_plugin_tts.rows import disjoint_split, groups_of, read_audio_pairs, refuse_shared

    if output.exists() and not (output / "audio_reward.json").is_file():
        raise ConfigError(f"--output {output} exists and is not an audio reward model", fix="name a new folder")
    check_output(output.absolute().parent, folder=True)
    pairs = read_audio_pairs(file)
    if heldout_pairs is None:
        train, heldout = disjoint_split(pairs, heldout_fraction, settings["seed"])
    else:
        train, heldout = pairs, read_audio_pairs(heldout_pairs)
        refuse_shared(train, heldout)

    from rlhf_plugin_tts.trained import FeatureEncoder, PretrainedEncoder
    from rlhf_plugin_tts.training import EncodedClips, HeadSettings, accuracy, save, train_head

    source = "features" if encoder is None else "encoder"
    head_settings = HeadSettings(**settings)
    with click.progressbar(length=2 * (len(train) + len(heldout)), label="clips", file=sys.stderr) as bar:
        clips = EncodedClips(FeatureEncoder() if encoder is None else PretrainedEncoder(encoder), bar.update)
        train_vectors, trained_on = clips.pairs(train)
        heldout_vectors, tested_on = clips.pairs(heldout)
    head = train_head(train_vectors, head_settings)
    result: dict[str, Any] = {
        "reward": REWARD_OF[source],
        "train_pairs": len(trained_on),
        "train_accuracy": accuracy(head, train_vectors, groups_of(trained_on))["accuracy"],
        "heldout": accuracy(head, heldout_vectors, groups_of(tested_on), head_settings.seed),
        "unusable_clips": len(clips.unusable),
        "random_labels": head_settings.random_labels,
        "folder": str(output),
    }
    save(head, output, source, encoder or "", head_settings, result)
    if as_json:
        emit_json(result)
        return
    test = result["heldout"]
    low, high = test["interval"]
    click.echo(
        f"held out: {test['accuracy']:.3f} of {test['pairs']} pairs ordered as labelled "
        f"(95% {low:.3f} to {high:.3f}, {test['groups']} groups without a common clip)"
    )
    click.echo(f"trained on {len(trained_on)} pairs, {result['train_accuracy']:.3f} of them ordered as labelled")
    if clips.unusable:
        click.echo(f"{len(clips.unusable)} clips could not be used: {next(iter(clips.unusable.values()))}")
    click.echo(f"written to {output}: --reward {result['reward']} --set reward.path={output}")
