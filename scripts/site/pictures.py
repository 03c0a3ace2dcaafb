"""Writes docs/pictures/*.svg: ``python -m scripts.site.pictures``. Curves are computed, results are read."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.site.svg import arrow, axes, box, line, picture, text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
STUDY = ROOT / "extensions" / "rlhf-studies" / "rlhf_studies" / "ensemble_vs_single" / "result.json"


def loop() -> str:
    """One step of an on-policy run."""
    names = [
        ("prompts", "data set"),
        ("rollouts", "agent, engine"),
        ("scores", "reward"),
        ("advantages", "estimator"),
        ("update", "loss, strategy"),
    ]
    parts = [box(20 + 150 * i, 60, 120, 56, pair, "p" if i in (1, 4) else "b") for i, pair in enumerate(names)]
    parts += [arrow((140 + 150 * i, 88), (168 + 150 * i, 88)) for i in range(4)]
    parts += [
        arrow((680, 60), (680, 28), (230, 28), (230, 58)),
        text(455, 20, "new weights sample the next batch", "s"),
    ]
    parts += [arrow((680, 116), (680, 142)), box(620, 144, 120, 36, ["checkpoint"])]
    return picture(760, 192, "prompts, rollouts, scores, advantages, update, and back with new weights", parts)


def rollout() -> str:
    """One completion: tokens, logprobs, mask."""
    tokens = ["What", "is", "2+3", "?", "It", "is", "5", ".", "<end>"]
    logprobs = [None] * 4 + [-0.4, -0.1, -1.2, -0.1, 0.0]
    parts = []
    for i, (token, logprob) in enumerate(zip(tokens, logprobs)):
        x, chosen = 140 + 66 * i, logprob is not None
        parts += [box(x, 30, 60, 34, [token], "p" if chosen else "b")]
        parts += [text(x + 30, 92, f"{logprob:.1f}" if chosen else "–", "m"), text(x + 30, 120, str(int(chosen)), "m")]
        parts += [text(x + 30, 148, "+0.9" if chosen else "–", "m")]
    rows = ["tokens", "logprobs", "loss mask", "advantages"]
    parts += [text(128, y, name, "s", "end") for y, name in zip((52, 92, 120, 148), rows)]
    parts += [text(270, 20, "prompt: given", "s"), text(570, 20, "completion: sampled, and learned from", "s")]
    return picture(760, 164, "a rollout is tokens with a logprob, a mask and an advantage for each sampled one", parts)


def score() -> str:
    """What a reward returns."""
    parts = [box(20, 60, 150, 56, ["completion", "text, prompt, row"], "p"), arrow((170, 88), (238, 88))]
    parts += [box(240, 60, 150, 56, ["reward", "model, verifier, judge"])]
    cases = [
        ("0.7 = 0.4 style + 0.3 rules", "g", "ok: counts"),
        ("no value: error", "r", "left out, counted"),
        ("no value: timeout", "r", "left out, counted"),
    ]
    for i, (words, kind, then) in enumerate(cases):
        y = 18 + 52 * i
        parts += [
            arrow((390, 88), (428, y + 18)),
            box(430, y, 250, 36, [words], kind),
            text(692, y + 23, then, "s", "start"),
        ]
    return picture(820, 176, "a score is a value with parts, or a status that says why there is none", parts)


def group() -> str:
    """Scores of a group and the advantages made of them."""
    scores = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    mean, deviation = statistics.mean(scores), statistics.stdev(scores)
    parts = [text(60, 24, "scores of 8 completions of one prompt", "s", "start")]
    parts += [text(440, 24, "advantages: (score - mean) / deviation", "s", "start")]
    parts += [line([(50, 150), (380, 150)]), line([(430, 110), (760, 110)])]
    for i, value in enumerate(scores):
        advantage = (value - mean) / deviation
        height, kind = 36 * abs(advantage), "g" if advantage > 0 else "r"
        parts += [
            f'<rect x="{58 + 40 * i}" y="{150 - 90 * value - 2:g}" width="26" height="{90 * value + 2:g}" class="p"/>'
        ]
        top = 110 - height if advantage > 0 else 110
        parts += [f'<rect x="{438 + 40 * i}" y="{top:.1f}" width="26" height="{height:.1f}" class="{kind}"/>']
        parts += [text(451 + 40 * i, top - 6 if advantage > 0 else top + height + 15, f"{advantage:+.2f}", "s")]
        parts += [text(71 + 40 * i, 168, f"{value:g}", "s")]
    return picture(790, 180, "two right completions of eight get advantages above zero, the six others below", parts)


def curve(
    function: Callable[[float], float], low: float, high: float, place: Callable[[float, float], tuple[float, float]]
) -> list[tuple[float, float]]:
    """Points of a function on the paper."""
    grid = [low + (high - low) * i / 120 for i in range(121)]
    return [place(x, function(x)) for x in grid]


def clip() -> str:
    """The clipped objective for both signs of the advantage."""
    parts = []
    for left, advantage, name in ((60, 1.0, "advantage +1"), (440, -1.0, "advantage -1")):

        def place(x: float, y: float, left: int = left, advantage: float = advantage) -> tuple[float, float]:
            return left + 300 * (x - 0.4) / 1.2, 170 - 85 * (y if advantage > 0 else y + 1.8)

        def plain(x: float, advantage: float = advantage) -> float:
            return x * advantage

        def clipped(x: float, advantage: float = advantage) -> float:
            return min(x * advantage, max(0.8, min(1.2, x)) * advantage)

        parts += [axes(left, 180, 300, 140, "ratio of new to old probability", f"objective, {name}")]
        parts += [line(curve(plain, 0.4, 1.6, place), "lr"), line(curve(clipped, 0.4, 1.6, place), "lp")]
        for tick in (0.8, 1.0, 1.2):
            x, _ = place(tick, 0)
            parts += [line([(x, 180), (x, 185)]), text(x, 199, f"{tick:g}", "s")]
    parts += [text(400, 236, "solid: clipped at 0.2, flat where there is no gradient; dashed: not clipped", "s")]
    return picture(
        790, 246, "the clipped objective is flat above a ratio of 1.2 for good tokens and below 0.8 for bad ones", parts
    )


def kl() -> str:
    """The three estimators of KL by the log ratio."""
    functions: list[tuple[str, Callable[[float], float], str]] = [
        ("k1 = -log r", lambda x: -x, "l"),
        ("k2 = (log r)² / 2", lambda x: x * x / 2, "lr"),
        ("k3 = r - 1 - log r", lambda x: math.exp(x) - 1 - x, "lp"),
    ]

    def place(x: float, y: float) -> tuple[float, float]:
        return 80 + 420 * (x + 1.5) / 3, 150 - 45 * y

    parts = [axes(80, 230, 420, 200, "log r, r = reference probability / policy's", "estimate, nats")]
    parts += [line([(80, 150), (500, 150)]), text(70, 154, "0", "s", "end"), text(70, 109, "1", "s", "end")]
    for i, (name, function, kind) in enumerate(functions):
        parts += [line(curve(function, -1.5, 1.5, place), kind)]
        parts += [line([(530, 60 + 32 * i), (570, 60 + 32 * i)], kind), text(580, 65 + 32 * i, name, "", "start")]
    parts += [
        text(530, 170, "the mean of k1 and of k3 is the KL,", "s", "start"),
        text(530, 188, "that of k2 is near it; k1 can be negative", "s", "start"),
    ]
    return picture(790, 276, "k1, k2 and k3 as functions of the log ratio", parts)


def means() -> str:
    """The weight of a token under three reductions, for completions of 2 and 8 tokens."""
    lengths, longest = (2, 8), 10
    weights: list[tuple[str, Callable[[int], float]]] = [
        ("token_mean", lambda length: 1 / sum(lengths)),
        ("sequence_mean", lambda length: 1 / (len(lengths) * length)),
        ("constant (10)", lambda length: 1 / (len(lengths) * longest)),
    ]
    parts = []
    for i, (name, weight) in enumerate(weights):
        left = 30 + 255 * i
        parts += [text(left, 24, name, "", "start"), line([(left, 150), (left + 230, 150)])]
        x = float(left)
        for length, kind in zip(lengths, "pg"):
            for _ in range(length):
                height = 400 * weight(length)
                parts += [
                    f'<rect x="{x + 2:g}" y="{150 - height:.1f}" width="17" height="{height:.1f}" class="{kind}"/>'
                ]
                x += 21
            parts += (
                [text(x - 10.5 * length, 168, f"{length} tokens: {weight(length):.3f} each", "s")] if length > 2 else []
            )
            parts += [text(x - 10.5 * length, 186, f"{length}: {weight(length):.3f}", "s")] if length == 2 else []
            x += 14
    return picture(
        790, 198, "a token's weight in the loss for a short and a long completion under three reductions", parts
    )


def staleness() -> str:
    """Sampling and learning in turn, and one step ahead."""
    parts = []
    for top, name in ((20, "max_staleness 0"), (120, "max_staleness 1")):
        parts += [
            text(20, top + 10, name, "", "start"),
            text(150, top + 34, "sample", "s", "end"),
            text(150, top + 66, "learn", "s", "end"),
        ]
    for i in range(3):
        x = 160 + 190 * i
        parts += [box(x, 34, 92, 26, [f"batch {i + 1}, v{i}"], "p"), box(x + 95, 66, 92, 26, [f"batch {i + 1}"], "g")]
    for i in range(5):
        parts += [box(160 + 98 * i, 134, 94, 26, [f"batch {i + 1}, v{max(0, i - 1)}"], "p")]
        parts += [box(258 + 98 * i, 166, 94, 26, [f"batch {i + 1}"], "g")]
    parts += [
        text(
            400, 216, "v: the version of the weights that sampled; below, a batch is learned from one update later", "s"
        )
    ]
    return picture(790, 228, "sampling and learning in turn, and sampling one update ahead", parts)


def choose() -> str:
    """Which algorithm for which data."""
    rows = [
        ("good answers", "sft"),
        ("pairs: this one rather than that", "dpo, or reward_model, then grpo"),
        ("answers with thumbs up or down", "kto"),
        ("prompts, and a program that checks", "grpo, dapo"),
        ("solutions with labelled steps", "prm, then grpo with advantage=step"),
        ("grades on criteria", "rubric_model, then grpo"),
    ]
    parts = [text(40, 22, "you have", "s", "start"), text(440, 22, "begin with: rlhf train --algo", "s", "start")]
    for i, (data, algorithm) in enumerate(rows):
        y = 34 + 44 * i
        parts += [
            box(30, y, 310, 34, [data]),
            arrow((340, y + 17), (428, y + 17)),
            box(430, y, 330, 34, [algorithm], "p"),
        ]
    return picture(790, 306, "which data leads to which algorithm", parts)


def hacking() -> str:
    """Proxy and gold of the recorded study, seed by seed mean, single model."""
    runs = [row["single"] for row in json.loads(STUDY.read_text())["results"]]
    steps = [step for step, _ in runs[0]["gold"]]

    def mean(name: str) -> list[float]:
        return [statistics.mean(run[name][i][1] for run in runs) for i in range(len(steps))]

    parts = []
    for left, name, kind in ((80, "proxy reward", "lr"), (460, "gold", "lg")):
        values = mean(name)
        low, high = min(values), max(values)
        points = [(left + 290 * s / steps[-1], 170 - 120 * (v - low) / (high - low)) for s, v in zip(steps, values)]
        label = "proxy: what is optimised" if name != "gold" else "gold: what it stands for"
        parts += [axes(left, 180, 300, 140, "step", label), line(points, kind)]
        parts += [text(left - 8, 174, f"{low:.2f}", "s", "end"), text(left - 8, 54, f"{high:.2f}", "s", "end")]
        parts += [text(x, 198, str(s), "s") for s, (x, _) in zip(steps, points) if s % 10 == 0]
    return picture(
        800, 226, "while the proxy reward rises through all 30 steps, the gold score rises and then falls", parts
    )


PICTURES: Mapping[str, Callable[[], str]] = {
    f.__name__: f for f in (loop, rollout, score, group, clip, kl, means, staleness, choose, hacking)
}


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
