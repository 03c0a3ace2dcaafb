"""`rlhf tts compare`: what rewards say of two speech policies, sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli import check_output, emit_json, load_sampler, open_registry
from rlhf_core.config import ConfigError
from rlhf_core.data import Prompt, write_json
from rlhf_core.models import ModelError
from rlhf_core.rewards import Sample, Score

if TYPE_CHECKING:
    from rlhf_core.rollouts import Rollout

REWARDS = ("wer", "distillmos", "dnsmos")


@click.command(context_settings={"show_default": True})
@click.argument("model", metavar="MODEL")
@click.option("--before", metavar="M", help="Another voice, of which MODEL was trained; without it one is measured.")
@click.option(
    "--reward", "names", multiple=True, metavar="NAME", help="A scorer. Repeatable; default: wer, distillmos, dnsmos."
)
@click.option("--set", "settings", multiple=True, metavar="NAME:a.b=c", help="One setting of a scorer. Repeatable.")
@click.option("--description", default="", show_default=False, metavar="TEXT", help="Of the voice; default: left open.")
@click.option("--count", type=click.IntRange(2, 40), default=40, help="Sentences, none trained on.")
@click.option("--n", type=click.IntRange(1), default=1, help="Samples of each.")
@click.option("--max-tokens", type=click.IntRange(8), default=480)
@click.option("--temperature", type=click.FloatRange(0), default=1.0, help="0 is greedy.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0)
@click.option("--jobs", type=click.IntRange(1), default=1, help="Processes that score.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write every score as JSON.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def compare(model: str, output: Path | None, as_json: bool, **options: Any) -> None:
    """Measure a speech policy on forty sentences that it was not trained on, beside the one that it came from.

    The difference is taken sentence by sentence; intervals are 95 % bootstrap intervals over sentences.

    \b
    rlhf tts compare runs/speech --before voices/base
    rlhf tts compare voices/base --reward wer --reward acoustic_proxy
    """
    if output is not None:
        check_output(output)
    result = measure(model, options)
    if output is not None:
        write_json(output, result)
    emit_json(result) if as_json else print_table(result)


def measure(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    from rlhf_plugin_tts.speech_data.catalogue import UNSEEN
    from rlhf_plugin_tts.validate_cli import select

    names = options["names"] or REWARDS
    select(names, options["settings"], "", options["seed"])
    prompts = prompts_of(options.get("texts") or UNSEEN[: options["count"]], options["description"])
    voices = {"after" if options["before"] else "voice": model}
    voices = {"before": options["before"], **voices} if options["before"] else voices
    how = {name: options[name] for name in ("n", "seed", "max_tokens", "temperature")}
    samples_by_voice = {which: speak(path, prompts, **how) for which, path in voices.items()}
    samples = [sample for voice in samples_by_voice.values() for sample in voice]
    size = len(samples) // len(samples_by_voice)
    slices = {which: slice(i * size, (i + 1) * size) for i, which in enumerate(samples_by_voice)}
    by_reward = score_with(names, options["settings"], options["seed"], samples, options.get("jobs") or 1)
    scores: dict[str, dict[str, list[float | None]]] = {}
    for name, rows in by_reward.items():
        for part in ("", *sorted({p for row in rows for p in row.parts})):
            values = [(row.parts.get(part) if part else row.value) if row.ok else None for row in rows]
            scores[f"{name}/{part}" if part else name] = {which: values[cut] for which, cut in slices.items()}
    table = {name: _summary(by_voice, options["n"], options["seed"]) for name, by_voice in scores.items()}
    return {"voices": voices, "sentences": len(prompts), "samples": options["n"], "table": table, "scores": scores}


def score_with(
    names: Sequence[str], settings: Sequence[str], seed: int, samples: Sequence[Sample], jobs: int
) -> dict[str, list[Score]]:
    """Name of each reward -> one score per sample, in ``jobs`` processes."""
    if jobs == 1:
        return _scores(names, settings, seed, samples)
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    import torch

    size = -(-len(samples) // jobs)
    shares = [samples[i : i + size] for i in range(0, len(samples), size)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        waiting = [pool.submit(_scores, names, settings, seed, share, False) for share in shares]
        done = [future.result() for future in waiting]
    return {name: [score for share in done for score in share[name]] for name in names}


def _scores(
    names: Sequence[str], settings: Sequence[str], seed: int, samples: Sequence[Sample], alone: bool = True
) -> dict[str, list[Score]]:
    from rlhf_core.rewards import score_samples
    from rlhf_plugin_composite.reward import keeps_state
    from rlhf_plugin_tts.validate_cli import select

    scores: dict[str, list[Score]] = {}
    for name, (config, ctx) in select(names, settings, "", seed).items():
        with ctx.open("reward", config) as reward:
            if not alone and keeps_state(reward):
                raise ConfigError(f"reward '{name}' learns from what it scores", fix="leave --jobs out")
            scores[name] = list(score_samples(reward, samples, f"reward '{name}'"))
    return scores


def prompts_of(texts: Sequence[str], description: str = "") -> list[Prompt]:
    """Each sentence as a prompt, the voice described or left open."""
    turns = ({"role": "system", "content": description},) if description else ()
    return [Prompt(f"unseen/{n}", (*turns, {"role": "user", "content": text})) for n, text in enumerate(texts, 1)]


def speak(
    model: str, prompts: Sequence[Prompt], n: int, seed: int, max_tokens: int = 480, temperature: float = 1.0
) -> list[Sample]:
    """``n`` clips of each prompt, prompt by prompt."""
    rollouts = open_voice(model, max_tokens, temperature)(prompts, n, seed)
    repeated = [prompt for prompt in prompts for _ in range(n)]
    return [rollout.sample(prompt) for rollout, prompt in zip(rollouts, repeated, strict=True)]


def open_voice(model: str, max_tokens: int, temperature: float) -> Callable[..., list[Rollout]]:
    """What speaks prompts: ``n`` clips of each by seed, prompt by prompt."""
    from rlhf_core.models import Formatter, ModelConfig
    from rlhf_core.rollouts import SamplingParams

    sampler = load_sampler(open_registry(), ModelConfig(path=model))
    if Formatter(sampler.policy.tokenizer, "auto").modality is None:
        raise ModelError(f"'{model}' does not speak", why="its folder has no modality.json")
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    return lambda prompts, n, seed: sampler.sample(prompts, params, n, seed)


def _summary(by_voice: Mapping[str, Sequence[float | None]], n: int, seed: int) -> dict[str, Any]:
    import numpy as np

    means = {which: _by_sentence(values, n) for which, values in by_voice.items()}
    out: dict[str, Any] = {which: interval(rows, seed) for which, rows in means.items()}
    out["missing"] = {which: sum(v is None for v in values) for which, values in by_voice.items()}
    if "before" in means:
        out["difference"] = interval(np.array(means["after"]) - np.array(means["before"]), seed)
    return out


def _by_sentence(values: Sequence[float | None], n: int) -> Any:
    """Mean of each sentence's samples that have a score; NaN if none has."""
    import numpy as np

    rows = np.array([np.nan if v is None else float(v) for v in values]).reshape(-1, n)
    scored = ~np.isnan(rows)
    return np.where(scored.any(1), np.nansum(rows, 1) / np.maximum(1, scored.sum(1)), np.nan)


def interval(rows: Any, seed: int) -> dict[str, float | None]:
    """Mean, and where it lies in 95 % of 2,000 draws of sentences with replacement."""
    import numpy as np

    rows = rows[~np.isnan(rows)]
    if not len(rows):
        return {"mean": None, "low": None, "high": None}
    draws = rows[np.random.default_rng(seed).integers(0, len(rows), (2000, len(rows)))].mean(1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return {"mean": float(rows.mean()), "low": float(low), "high": float(high)}


def print_table(result: Mapping[str, Any]) -> None:
    columns = [*result["voices"], *(["difference"] if "before" in result["voices"] else [])]
    click.echo(f"{result['sentences']} sentences, {result['samples']} samples each; 95 % intervals")
    click.echo("".join(["scorer".ljust(34), *(c.ljust(28) for c in columns), "missing"]))
    for name, row in result["table"].items():
        cells = [_cell(row[c]).ljust(28) for c in columns]
        click.echo("".join([name.ljust(34), *cells, str(sum(row["missing"].values()))]))


def _cell(one: Mapping[str, float | None]) -> str:
    if one["mean"] is None:
        return "-"
    return f"{one['mean']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}]"
