"""What training does to pocket-voice: gains on unseen sentences by what made the labels, by algorithm, against chance.

Each arm is `rlhf tts train` with other labels, at equal numbers of clips: ``composite`` (its default), ``grpo`` (the
same reward), ``mos`` (DNSMOS P.808 alone, guarded), ``features`` (a model on acoustic features alone, guarded),
``random`` (the control). A gain's standard error is over training seeds, over sentences where there is one seed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from rlhf_core.cli.main import cli
from rlhf_core.config import merge_settings, parse_settings
from rlhf_plugin_tts.speech_data.catalogue import UNSEEN
from rlhf_plugin_tts.speech_data.catalogue import sentences as catalogue
from rlhf_plugin_tts.speech_training.command import configuration, scorers
from rlhf_plugin_tts.speech_training.command import run as train
from scripts.bench._speech_voices import Scores, scores_of

ARMS = ("composite", "random", "features", "mos", "grpo")
SHOWN = ("wer/wer", "wer/cer", "distillmos", "dnsmos/p808", "dnsmos/ovrl", "acoustic_proxy")
EXPECTED = {
    "expressive": 0.29,
    "narrative": 0.24,
    "conversational": 0.21,
    "informational": 0.19,
    "instructional": 0.18,
    "technical": 0.15,
}
"""What the method that the proxy is from states as gain of its proxy by category, after three iterations."""


def feature_model(folder: Path) -> Path:
    """A reward model on acoustic features, trained on a voice's best against its worst sample by P.808."""
    pairs, model = folder / "feature-pairs.jsonl", folder / "feature-model"
    if not model.is_dir():
        _rlhf("data", "generate", "speech", "--by", "samples", "--reward", "dnsmos", "--set", "only_value=true",
              "--output", str(pairs))  # fmt: skip
        _rlhf("tts", "train-reward", "--pairs", str(pairs), "--output", str(model))
    return model


def _rlhf(*words: str) -> None:
    done = CliRunner().invoke(cli, list(words))
    if done.exit_code:
        raise SystemExit(f"rlhf {' '.join(words)}: {done.output[-500:]}")
    print(done.stdout.strip().splitlines()[0], flush=True)


def labels(arm: str, folder: Path) -> dict[str, Any]:
    """The arm's reward, where it is not the recipe's."""
    if arm == "mos":
        return {"name": "guarded", "of": {"name": "dnsmos", "only_value": True}}
    if arm == "features":
        return {"name": "guarded", "of": {"name": "audio_feature_model", "path": str(feature_model(folder).resolve())}}
    return {}


def trained(arm: str, seed: int, folder: Path, jobs: int, settings: Sequence[str]) -> Path:
    options = {"model": "pocket-voice", "algo": "grpo" if arm == "grpo" else "iterative_dpo", "reward": None}
    options |= {"iterations": 3, "buffer": "fresh", "random_labels": arm == "random", "early_stop": False}
    config = configuration({**options, "settings": (), "seed": seed}, jobs)
    if reward := labels(arm, folder):
        config = {**config, "reward": reward}
    train(folder / f"{arm}-{seed}", merge_settings(config, parse_settings(settings)))
    return folder / f"{arm}-{seed}"


def measured(folder: Path, name: str, model: str, jobs: int, count: int) -> dict[str, Scores]:
    """Scores of the unseen sentences by every scorer, and of the catalogue's by those that cost little."""
    texts = [text for _, _, text in catalogue()]
    return {
        "unseen": scores_of(folder / f"{name}.json", model, UNSEEN[:count], (*scorers(), "acoustic_proxy"), jobs),
        "catalogue": scores_of(folder / f"{name}-catalogue.json", model, texts, ("acoustic_proxy", "dnsmos"), jobs),
    }


def gains(before: Scores, after: list[Scores], rows: slice | list[int]) -> dict[str, Any]:
    table = {}
    for name in (n for n in SHOWN if n in before):
        old = np.array(before[name], float)[rows]
        differences = [np.array(one[name], float)[rows] - old for one in after]
        means = [float(np.nanmean(d)) for d in differences]
        spread = np.std(means, ddof=1) if len(means) > 1 else np.nanstd(differences[0], ddof=1)
        count = len(means) if len(means) > 1 else np.sum(~np.isnan(differences[0]))
        table[name] = {"gain": float(np.mean(means)), "se": float(spread / np.sqrt(count)), "seeds": means}
    return table


def run(
    folder: Path,
    arms: tuple[str, ...] = ARMS,
    seeds: tuple[int, ...] = (0, 1, 2),
    jobs: int = os.cpu_count() or 1,
    sentences: int = len(UNSEEN),
    settings: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Train and measure; ``sentences`` unseen ones are measured, ``settings`` go to every training."""
    folder.mkdir(parents=True, exist_ok=True)
    start = measured(folder, "before", "pocket-voice", jobs, sentences)
    texts = UNSEEN[:sentences]
    greedy = scores_of(folder / "before-greedy.json", "pocket-voice", texts, scorers(), jobs, temperature=0.0)
    after: dict[str, list[dict[str, Scores]]] = {}
    for seed in seeds:
        for arm in arms:
            voice = trained(arm, seed, folder, jobs, settings)
            after.setdefault(arm, []).append(measured(folder, f"{arm}-{seed}", str(voice), jobs, sentences))
            print(f"{arm}, seed {seed}", flush=True)
    kinds = [kind for _, kind, _ in catalogue()]
    rows_of = {kind: [i for i, k in enumerate(kinds) if k == kind] for kind in EXPECTED}
    by_kind = {
        kind: {arm: gains(start["catalogue"], [one["catalogue"] for one in each], rows) for arm, each in after.items()}
        for kind, rows in rows_of.items()
    }
    unseen = slice(0, sentences)
    return {
        "before": {n: float(np.nanmean(np.array(start["unseen"][n], float))) for n in SHOWN if n in start["unseen"]},
        "before, greedy": {n: float(np.nanmean(np.array(greedy[n], float))) for n in SHOWN if n in greedy},
        "unseen": {arm: gains(start["unseen"], [one["unseen"] for one in each], unseen) for arm, each in after.items()},
        "categories": {arm: {k: by_kind[k][arm]["acoustic_proxy"] for k in EXPECTED} for arm in after},
        "categories, every scorer": by_kind,
    }
