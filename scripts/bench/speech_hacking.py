"""Reward hacking in sound: one scorer alone is optimised until others fall; the composite beside it.

    python -m scripts.bench speech_hacking folder=runs/hacking

GRPO on pocket-voice, twice with the same seed and sizes: by ``acoustic_proxy`` alone, and by the composite of
`rlhf tts train` with the proxy as a third part. In both, the monitor ``hacking`` compares the reward with DistillMOS,
which nothing is trained on and which alone agreed with listeners (docs/speech.md), at its own rates of false alarms; it
only warns. In 48 steps its test finds a scorer that loses a bit more than one standard deviation of its clips evenly.
Every step also records the proxy, DNSMOS P.808 and the phone error rate. At the end the first voice and both others
say the validation sentences twice each; a scorer has fallen where the 95 % interval of its difference, over sentences,
is for the worse alone. The same command goes on where it stopped. Needs
``pip install --no-deps distillmos``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.config import merge_settings, parse_settings
from rlhf_core.data import read_jsonl
from rlhf_plugin_tts.speech_data.unseen import VALIDATION
from rlhf_plugin_tts.speech_training.command import run as train
from rlhf_plugin_tts.speech_training.command import scorers
from rlhf_plugin_tts.speech_training.recipe import composite, sampling
from scripts.bench._speech_voices import by_sentence, change, heard

PROXY = {
    "reward": {"name": "acoustic_proxy"},
    "normalise": "zscore",
    "statistics": "calibrated",
    "mean": 0.6,
    "std": 0.35,
}
WATCHED = {
    "proxy": "reward/part/proxy/raw",
    "P.808": "reward/part/quality/raw",
    "phone errors": "reward/part/words/per",
    "DistillMOS": "hacking/second",
}
SHOWN = ("acoustic_proxy", "wer/wer", "wer/cer", "distillmos", "dnsmos/p808", "dnsmos/ovrl")
SAMPLES = 2
"""Clips of each validation sentence."""
LEVELS = {0.0: "ok", 1.0: "WARNING", 2.0: "HARD_STOP"}


def configuration(arm: str, steps: int, clips: int, seed: int, jobs: int) -> dict[str, Any]:
    """What `rlhf train` is given. ``single``: all parts but the proxy only record."""
    parts = composite()["parts"]
    if arm == "single":
        parts = {name: {**part, "weight": 0.0} for name, part in parts.items()}
    reward = {
        **composite(),
        "parts": {**parts, "proxy": {**PROXY, "weight": 1.0 if arm == "single" else 0.2, "clip": 10.0}},
    }
    guards = {"most_duration_error": None, "most_clipping": None, "most_silence": None} if arm == "single" else {}
    trainer = {
        **sampling(),
        "name": "grpo",
        "steps": steps,
        "rollout_batch_size": clips,
        "group_size": 8,
        "micro_batch_size": 32,
        "eval_samples": 0,
        "checkpoint_every": 4,
        "reward_workers": jobs,
        "optimizer": {"learning_rate": 5e-4, "warmup_steps": 2},
    }
    second = {"second": {"name": "distillmos"}, "samples": 16}
    monitor = {"name": "hacking", "stop": False, "divergence": second}
    return {
        "model": {"path": "pocket-voice"},
        "dataset": {"name": "speech"},
        "reward": {**reward, "guards": guards},
        "trainer": trainer,
        "monitors": [monitor],
        "seed": seed,
    }


def curves(folder: Path) -> dict[str, Any]:
    """Metrics of each step, and the steps at which the monitor was alarmed."""
    by_step: dict[int, dict[str, float]] = {}
    for row in read_jsonl(folder / "metrics.jsonl"):
        by_step.setdefault(int(row["step"]), {}).update(row)
    steps = [step for step, row in sorted(by_step.items()) if WATCHED["proxy"] in row]
    alarms = {step: LEVELS[level] for step in steps if (level := by_step[step].get("hacking/level", 0.0)) > 0}
    lines = {name: [by_step[step].get(key) for step in steps] for name, key in WATCHED.items()}
    return {**lines, "steps": steps, "alarms": alarms, "first alarm": next(iter(alarms.items()), None)}


def draw(lines: dict[str, Any], file: Path) -> None:
    """A panel for each scorer, a line for each run; alarms are dots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(WATCHED), figsize=(3.2 * len(WATCHED), 3), constrained_layout=True)
    for panel, name in zip(panels, WATCHED, strict=True):
        for arm, line in lines.items():
            values = np.array(line[name], float)
            (drawn,) = panel.plot(line["steps"], values, label=arm)
            at = [i for i, step in enumerate(line["steps"]) if step in line["alarms"]]
            panel.plot([line["steps"][i] for i in at], values[at], "o", color=drawn.get_color())
        panel.set_title(name)
        panel.set_xlabel("step")
    panels[0].legend()
    figure.savefig(file)


def run(
    folder: Path,
    steps: int = 48,
    clips: int = 64,
    sentences: int = len(VALIDATION),
    seed: int = 0,
    jobs: int = os.cpu_count() or 1,
    settings: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Train both, and listen; ``clips`` are of a step, ``sentences`` validation sentences at the end."""
    if find_spec("distillmos") is None:
        raise SystemExit("the monitor listens with DistillMOS: pip install --no-deps distillmos")
    folder.mkdir(parents=True, exist_ok=True)
    listen: dict[str, Any] = {"texts": VALIDATION[:sentences], "names": (*scorers(), "acoustic_proxy"), "jobs": jobs}
    scores, lines = {"before": heard(folder / "before.json", "pocket-voice", **listen, n=SAMPLES)}, {}
    for arm in ("single", "composite"):
        config = configuration(arm, steps, clips, seed, jobs)
        train(folder / arm, merge_settings(config, parse_settings(settings)))
        lines[arm] = curves(folder / arm)
        scores[arm] = heard(folder / f"{arm}.json", str(folder / arm), **listen, n=SAMPLES)
    changes = {arm: {name: change(name, scores["before"], scores[arm], SAMPLES) for name in SHOWN} for arm in lines}
    before = {n: float(np.nanmean(by_sentence(scores["before"][n], SAMPLES))) for n in SHOWN}
    return {"curves": lines, "before": before, "changes": changes}


def finish(results: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Draw the curves."""
    draw(results["run"]["curves"], folder / "speech_hacking.png")
