"""Which weights should a composite reward have, and does a look at scored responses tell before any training?

    python scripts/studies/composite_weights.py [--seeds 0 1 2] [--steps 14] [--trunk full] [--out PATH] [--work DIR]

For each seed: a Bradley-Terry model is trained on pocket pairs, 8 answers of the untrained policy to each of 60 unseen
prompts are scored by it (sigmoid) and by rules (length, hollow affirmations), and the weights of the two are ablated,
as `rlhf reward ablate` does. Then GRPO trains with some of the weightings (not with --steps 0), and the held-out gold
score says what they were worth. `--trunk frozen` trains a linear head only, on 1024 pairs. With --work what was
done there with the same options is found again. Writes OUT.json and OUT.md after every seed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_core.api import ModelConfig, OptimizerSettings, Prompt, Sample, SamplingParams
from rlhf_core.cli.generate import sample
from rlhf_core.config.load import parse_sets
from rlhf_core.kernels.matmul import use_products
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.pocket.data import of_split
from rlhf_core.pocket.gold import gold_score
from rlhf_core.registry import Registry
from rlhf_core.runs.atomic import whole_folder
from rlhf_core.runs.jsonl import read_jsonl
from rlhf_core.sdk import context_of
from rlhf_plugin_composite.ablation import read_scored, weigh
from rlhf_plugin_composite.config import CompositeConfig, HollowCheck
from rlhf_plugin_composite.rules import hollow_pattern
from rlhf_plugin_datagen.outside import open_datasets
from rlhf_plugin_reward.config import EnsembleConfig
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_reward.net import fresh_net, save_classifier
from rlhf_plugin_reward.pairs import encode_pairs
from rlhf_plugin_reward.train import fit

PROMPTS, ANSWERS = 60, 8
TRAINED = (1.0, 0.7, 0.4, 0.0)
"""Weights of the reward model with which a policy is trained; the rules get the rest."""
RULES = "{name: programmatic, mode: continuous, length: {unit: words, max: 10}}"
EVALS = {
    name: f"eval/gold/{key}"
    for name, key in (("gold", "value"), ("right", "right"), ("hollow", "hollow"), ("words", "words"))
}


def rlhf(*arguments: object) -> str:
    """Run the command and return what it printed."""
    command = [sys.executable, "-m", "rlhf_core.cli.main", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def parts(model: Path, weight: float) -> str:
    """The composite's parts as a setting."""
    return (
        f"parts={{taste: {{reward: {{name: bradley_terry, path: {model}}}, normalise: sigmoid, weight: {weight}}}, "
        f"rules: {{reward: {RULES}, weight: {round(1 - weight, 6)}}}}}"
    )


def reward_model(folder: Path, seed: int, trunk: str, policy: LoadedModel) -> Path:
    """A Bradley-Terry model: by `rlhf train`, or a linear head on the frozen trunk by the same update."""
    model = folder / "rm" / "final"
    if model.is_dir():
        return model
    if trunk == "full":
        rlhf("train", "--algo", "reward_model", "--seed", seed, "--run-dir", folder / "rm")
        return model
    registry = Registry()
    pairs = open_datasets(registry, "pocket/assistant", limit=1024).pairs("train")
    items = encode_pairs(pairs, Encoder(policy.tokenizer, policy.context), Counter())
    config = EnsembleConfig(
        optimizer=OptimizerSettings(learning_rate=1e-2, schedule="cosine"), batch_size=64, micro_batch_size=64, epochs=8
    )
    net = fit(config, fresh_net(policy, 1, seed, "frozen"), items, seed, "cpu")
    with whole_folder(model) as aside:
        save_classifier(net, policy.tokenizer, aside)
    return model


def scored_answers(model: Path, seed: int, policy: LoadedModel) -> list[dict[str, Any]]:
    """Answers of the untrained policy with their gold score and the score of each part."""
    facts = of_split("heldout")[:PROMPTS]
    prompts = [Prompt(f"p/{i}", ({"role": "user", "content": q},)) for i, (_, q) in enumerate(facts)]
    rollouts = sample(policy, prompts, SamplingParams(max_tokens=48), ANSWERS, seed, "auto")
    rows = [
        (fact, prompts[i], rollouts[i * ANSWERS + k].text) for i, (fact, _) in enumerate(facts) for k in range(ANSWERS)
    ]
    registry = Registry()
    config = CompositeConfig.model_validate(parse_sets([parts(model, 0.5)]), context={"registry": registry})
    reward = config.build(context_of(registry, seed=seed, dataset={"name": "pocket/assistant"}))
    scores = reward.score([Sample(prompt, text) for _, prompt, text in rows])
    return [
        {
            "prompt": prompt.text,
            "completion": text,
            "parts": dict(score.parts),
            "gold": gold_score(fact.attribute.name, fact.value, text).value,
        }
        for (fact, prompt, text), score in zip(rows, scores)
    ]


def policy(folder: Path, model: Path, weight: float, seed: int, steps: int) -> dict[str, float]:
    """Train with one weighting and return the last held-out evaluation."""
    run = folder / f"grpo-{weight}-{steps}"
    if not (run / "final").is_dir():
        rlhf(
            "train",
            "--algo",
            "grpo",
            "--reward",
            "composite",
            "--set",
            f"reward.{parts(model, weight)}",
            "--seed",
            seed,
            "--set",
            f"trainer.steps={steps}",
            "--set",
            "trainer.eval_samples=200",
            "--set",
            "trainer.kl.coefficient=0",
            "--set",
            "trainer.checkpoint_every=0",
            "--run-dir",
            run,
        )
    rows = [r for r in read_jsonl(run / "metrics.jsonl") if EVALS["gold"] in r]
    return {
        "weight": weight,
        **{f"{k}_before": rows[0][key] for k, key in EVALS.items()},
        **{k: rows[-1][key] for k, key in EVALS.items()},
    }


def measure(folder: Path, seed: int, steps: int, trunk: str) -> dict[str, Any]:
    """Both halves for one seed."""
    folder.mkdir(parents=True, exist_ok=True)
    start = load_policy(ModelConfig())
    model = reward_model(folder, seed, trunk, start)
    scored = read_scored(scored_answers(model, seed, start), [], "gold", "the study's answers")
    weightings = [{"taste": w / 10, "rules": 1 - w / 10} for w in range(10, -1, -1)]
    static = [w.to_json() for w in weigh(scored, weightings, hollow_pattern(HollowCheck()))]
    return {
        "seed": seed,
        "static": static,
        "trained": [policy(folder, model, w, seed, steps) for w in TRAINED if steps],
    }


def tables(results: Sequence[dict[str, Any]]) -> str:
    """Means over seeds (lowest to highest)."""
    lines = [
        "| reward model | rules | spearman with gold | best-of-8 changed | its gold | hollow | words |",
        "|---|---|---|---|---|---|---|",
    ]
    for i, row in enumerate(results[0]["static"]):
        cells = [
            spread([r["static"][i][k] for r in results])
            for k in ("spearman", "changed", "chosen_label", "chosen_hollow", "chosen_words")
        ]
        lines.append(f"| {row['weights']['taste']:.1f} | {row['weights']['rules']:.1f} | {' | '.join(cells)} |")
    if not results[0]["trained"]:
        return "\n".join(lines)
    lines += ["", "| reward model | rules | gold after GRPO | right | hollow | words |", "|---|---|---|---|---|---|"]
    before = [mean([r["trained"][0][f"{k}_before"] for r in results]) for k in EVALS]
    lines.append(f"| before | | {' | '.join(f'{v:.3f}' for v in before)} |")
    for i, weight in enumerate(TRAINED):
        cells = [spread([r["trained"][i][k] for r in results]) for k in EVALS]
        lines.append(f"| {weight:.1f} | {1 - weight:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: Sequence[float | None]) -> str:
    """Mean, lowest and highest."""
    found = [v for v in values if v is not None]
    return f"{mean(found):.3f} ({min(found):.3f} to {max(found):.3f})" if found else "-"


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--trunk", choices=("full", "frozen"), default="full")
    parser.add_argument("--out", type=Path, default=Path("docs/studies/composite_weights"))
    parser.add_argument("--work", type=Path)
    args = parser.parse_args()
    use_products("auto")
    with tempfile.TemporaryDirectory() as temporary:
        root = args.work or Path(temporary)
        results: list[dict[str, Any]] = []
        for seed in args.seeds:
            results.append(measure(root / args.trunk / f"seed{seed}", seed, args.steps, args.trunk))
            record(results, f"--steps {args.steps} --trunk {args.trunk}", args.out)


def record(results: Sequence[dict[str, Any]], options: str, out: Path) -> None:
    """Write and print what there is."""
    text = tables(results)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps({"options": options, "results": list(results)}) + "\n")
    out.with_suffix(".md").write_text(
        f"`python scripts/studies/composite_weights.py {options}`, {len(results)} seeds\n\n{text}\n"
    )
    print(text, flush=True)


if __name__ == "__main__":
    main()
