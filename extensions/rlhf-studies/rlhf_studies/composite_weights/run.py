"""A reward model, an ablation on scored answers, and a policy for each of some weightings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import Registry
from rlhf_core.data import whole_folder
from rlhf_core.models import ModelConfig, load_policy, use_matmul_backend
from rlhf_core.rewards import Sample
from rlhf_core.training import OptimizerSettings
from rlhf_plugin_composite.ablation import Scored, read_scored, weigh
from rlhf_plugin_composite.config import HollowCheck
from rlhf_plugin_composite.rules import hollow_pattern
from rlhf_plugin_datagen.outside import open_datasets
from rlhf_plugin_reward.classifier_files import save_classifier
from rlhf_plugin_reward.config import EnsembleConfig
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_reward.members import fit
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.pairs import encode_pairs
from rlhf_studies.common.pocket import GOLD, first_and_last, sampled_answers
from rlhf_studies.composite_weights.config import CompositeWeightsConfig
from rlhf_study.runs import train
from rlhf_study.study import Study
from rlhf_study.tables import markdown, mean, spread

RULES = {"name": "programmatic", "mode": "continuous", "length": {"unit": "words", "max": 10}}
STATIC = {
    "spearman with gold": "spearman",
    "best-of-8 changed": "changed",
    "its gold": "chosen_label",
    "hollow": "chosen_hollow",
    "words": "chosen_words",
}
GRPO = {"name": "grpo", "eval_samples": 200, "kl": {"coefficient": 0}, "checkpoint_every": 0}


class CompositeWeights(Study[CompositeWeightsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        use_matmul_backend("auto")
        model = self.reward_model(folder, seed)
        static = ablation(self.scored(model, seed))
        weights = self.config.trained if self.config.steps else ()
        return {
            "seed": seed,
            "static": static,
            "trained": [self.trained(folder, model, weight, seed) for weight in weights],
        }

    def reward_model(self, folder: Path, seed: int) -> Path:
        """A Bradley-Terry model, by ``rlhf train`` or as a linear head."""
        if self.config.trunk == "full":
            return train(folder / "reward_model", {"seed": seed, "trainer": {"name": "reward_model"}}).final
        return linear_head(folder / "linear_head", self.config.pairs, seed)

    def scored(self, model: Path, seed: int) -> Scored:
        answers = sampled_answers(self.config.prompts, self.config.answers, seed)
        registry = open_registry()
        config = registry.config("reward", "composite", parts(model, 0.5))
        reward = config.build(context_of(registry, seed=seed, dataset={"name": "pocket/assistant"}))
        scores = reward.score([Sample(answer.prompt, answer.text) for answer in answers])
        rows = [
            {"prompt": a.prompt.text, "completion": a.text, "parts": dict(score.parts), "gold": a.gold}
            for a, score in zip(answers, scores)
        ]
        return read_scored(rows, [], "gold", "the study's answers")

    def trained(self, folder: Path, model: Path, weight: float, seed: int) -> dict[str, float]:
        reward = {"name": "composite", **parts(model, weight)}
        config = {"seed": seed, "reward": reward, "trainer": {**GRPO, "steps": self.config.steps}}
        before, after = first_and_last(train(folder / f"grpo-{weight}", config, self.config.train))
        return {"weight": weight, **{f"{name}_before": value for name, value in before.items()}, **after}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        seeds = list(results.values())
        tables = [static_table(seeds), *([trained_table(seeds)] if seeds[0]["trained"] else [])]
        return "\n\n".join(tables)


def parts(model: Path, weight: float) -> dict[str, Any]:
    taste = {"name": "bradley_terry", "path": str(model)}
    return {
        "parts": {
            "taste": {"reward": taste, "normalise": "sigmoid", "weight": weight},
            "rules": {"reward": dict(RULES), "weight": round(1 - weight, 6)},
        }
    }


def ablation(scored: Scored) -> list[dict[str, Any]]:
    weightings = [{"taste": tenths / 10, "rules": 1 - tenths / 10} for tenths in range(10, -1, -1)]
    return [weighting.to_json() for weighting in weigh(scored, weightings, hollow_pattern(HollowCheck()))]


def static_table(seeds: Sequence[Mapping[str, Any]]) -> str:
    rows: list[tuple[str, ...]] = []
    for i, row in enumerate(seeds[0]["static"]):
        cells = [spread(numbers(seed["static"][i][key] for seed in seeds)) for key in STATIC.values()]
        rows.append((f"{row['weights']['taste']:.1f}", f"{row['weights']['rules']:.1f}", *cells))
    return markdown(("reward model", "rules", *STATIC), rows)


def trained_table(seeds: Sequence[Mapping[str, Any]]) -> str:
    before = [f"{mean([seed['trained'][0][f'{name}_before'] for seed in seeds]):.3f}" for name in GOLD]
    rows: list[tuple[str, ...]] = [("before", "", *before)]
    for i, row in enumerate(seeds[0]["trained"]):
        cells = [spread([seed["trained"][i][name] for seed in seeds]) for name in GOLD]
        rows.append((f"{row['weight']:.1f}", f"{1 - row['weight']:.1f}", *cells))
    return markdown(("reward model", "rules", "gold after GRPO", "right", "hollow", "words"), rows)


def numbers(values: Any) -> list[float]:
    """Those that can be computed: constant scores have no rank correlation."""
    return [value for value in values if value is not None]


def linear_head(folder: Path, pairs: int, seed: int) -> Path:
    if folder.is_dir():
        return folder
    policy = load_policy(ModelConfig())
    rows = open_datasets(Registry(), "pocket/assistant", limit=pairs).pairs("train")
    items = encode_pairs(rows, Encoder(policy.tokenizer, policy.context), Counter())
    optimizer = OptimizerSettings(learning_rate=1e-2, schedule="cosine")
    config = EnsembleConfig(optimizer=optimizer, batch_size=64, micro_batch_size=64, epochs=8)
    net = fit(config, fresh_net(policy, 1, seed, "frozen"), items, seed, "cpu")
    with whole_folder(folder) as aside:
        save_classifier(net, policy.tokenizer, aside)
    return folder
