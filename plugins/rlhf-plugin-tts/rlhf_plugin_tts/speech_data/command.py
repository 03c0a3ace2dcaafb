"""`rlhf tts pairs`: preference pairs of clips from a speech policy."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli import chosen_reward, context_of, emit_json, open_registry
from rlhf_core.config import ConfigError, RlhfError

if TYPE_CHECKING:
    from rlhf_core.data import Prompt
    from rlhf_core.rollouts import Rollout
    from rlhf_plugin_tts.speech_data.pairs import Unit


@click.command(context_settings={"show_default": True})
@click.option("--model", default="pocket-voice", metavar="M", help="Speech policy that speaks.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The pairs.")
@click.option(
    "--by",
    type=click.Choice(["description", "samples"]),
    default="description",
    help="A better against a worse description, or the best against the worst of several samples.",
)
@click.option("--reward", "name", metavar="NAME", help="Reward that ranks samples, for example acoustic_proxy.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the reward. Repeatable.")
@click.option("--n", type=click.IntRange(2), default=4, help="Samples of each prompt.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Only the first N sentences of 30.")
@click.option("--max-tokens", type=click.IntRange(8), default=480, help="Of a clip.")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), default=1.0)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="The same seed, the same clips.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def pairs(output: Path, as_json: bool, **options: Any) -> None:
    """Make preference pairs of clips: thirty sentences in six categories and six descriptions of a voice.

    Rows hold the codes of both clips, which DPO trains on, and their FLAC files (in FILE's folder), which rewards are
    trained on. Pairs whose clips are equal, or that are there already, are left out. The same command goes on where it
    was stopped.

    \b
    rlhf tts pairs --model runs/voice --output pairs.jsonl
    rlhf tts pairs --model runs/voice --by samples --reward acoustic_proxy --output pairs.jsonl
    """
    result = make(output, options)
    if as_json:
        emit_json(result)
    else:
        click.echo(f"{result['pairs']} pairs of {result['units']} prompts, {result['left_out']} left out: {output}")
    if not result["pairs"]:
        raise RlhfError(
            f"no pair was made of {result['units']} prompts",
            why=f"{result['left_out']} left out: their clips are equal, or there already",
            fix="raise --temperature or --n, with another --output",
        )


def make(output: Path, options: dict[str, Any]) -> dict[str, Any]:
    from rlhf_core.models import model_paths, weights_digest
    from rlhf_core.rewards import score_samples
    from rlhf_plugin_tts.speech_data.compare import open_voice
    from rlhf_plugin_tts.speech_data.pairs import by_description, by_samples, is_new, keep_clips
    from rlhf_plugin_tts.speech_data.progress import Progress

    sampled = options["by"] == "samples"
    if sampled != bool(options["name"]):
        fix = "--reward NAME, for example acoustic_proxy" if sampled else "leave --reward out, or --by samples"
        raise ConfigError("pairs by samples are ranked by a reward, pairs by description are not", fix=fix)
    registry = open_registry()
    chosen = chosen_reward(registry, None, options["name"], options["settings"]) if sampled else None
    ctx = context_of(registry, seed=options["seed"], reward=chosen)
    if chosen is not None:
        chosen.preflight(ctx)
    models = (options["model"], *(model_paths(chosen.model_dump()) if chosen is not None else ()))
    weights = {model: weights_digest(model) for model in models}
    progress = Progress(output, {**options, "settings": list(options["settings"]), "weights": weights})
    voice = open_voice(options["model"], options["max_tokens"], options["temperature"])

    def speak(prompts: Sequence[Prompt], n: int) -> list[Rollout]:
        return voice(prompts, n, options["seed"])

    units = units_of(options["count"], sampled)
    seen = {(row["chosen"], row["rejected"]) for row in progress.rows()}
    folder = output.with_name(f"{output.stem}-clips")
    with contextlib.ExitStack() as stack:
        score: Any = None
        if chosen is not None:
            reward = stack.enter_context(ctx.open("reward", chosen))
            score = lambda samples: score_samples(reward, samples, f"reward '{chosen.name}'")  # noqa: E731
        for unit in units:
            if unit.name in progress.done:
                continue
            rows = by_samples(unit, speak, score, options["n"]) if sampled else by_description(unit, speak)
            new_rows = [keep_clips(row, folder) for row in rows if is_new(row, seen)]
            progress.add(unit.name, new_rows, max(1, len(rows)) - len(new_rows))
            click.echo(f"{unit.name}: {len(new_rows)} pairs", err=True)
    return {
        "output": str(output),
        "units": len(units),
        "pairs": len(progress.rows()),
        "left_out": progress.left_out,
    }


def units_of(count: int | None, sampled: bool) -> list[Unit]:
    """What is sampled together: each sentence, or each sentence in each description."""
    from rlhf_plugin_tts.speech_data.catalogue import DESCRIPTIONS, sentences
    from rlhf_plugin_tts.speech_data.pairs import Unit

    chosen = sentences()[:count]
    if not sampled:
        return [Unit(*one) for one in chosen]
    return [Unit(f"{name}/{d}", kind, text, d) for name, kind, text in chosen for d in DESCRIPTIONS]
