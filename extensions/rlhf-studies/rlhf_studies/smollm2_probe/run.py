"""Features once, two heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_core.data import Datasets, DatasetSettings
from rlhf_core.models import ModelConfig, load_policy, pad_rows, use_matmul_backend
from rlhf_plugin_prm.data.config import Gsm8kStepsConfig, ProcessBenchConfig
from rlhf_plugin_prm.evaluate import nowhere
from rlhf_plugin_prm.examples import Solution, read_solutions
from rlhf_plugin_prm.first_error import report
from rlhf_plugin_prm.net import StepEncoder
from rlhf_plugin_reward.net import trunk_of
from rlhf_plugin_reward.reward import by_length
from rlhf_studies.common.outside import data_file, model_path
from rlhf_studies.common.scores import auc
from rlhf_studies.smollm2_probe.config import Smollm2ProbeConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown

CONTEXT, BATCH_TOKENS = 2048, 4096
Head = Callable[[Any], Any]
"""Features ``[S, H]`` -> probability that each step is right."""


class Smollm2Probe(Study[Smollm2ProbeConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        """Both heads on the same features. Nothing is drawn at random."""
        data = data_file(self.config.data)
        gsm8k = str(data / "gsm8k" / "train.jsonl.gz")
        train = rows(Gsm8kStepsConfig(path=gsm8k, problems=self.config.problems))
        bench = rows(ProcessBenchConfig(path=str(data / "processbench" / "gsm8k.json.gz")))
        tested = [bench[n] for n in np.linspace(0, len(bench) - 1, self.config.solutions).round().astype(int)]
        use_matmul_backend("auto")
        path = model_path(self.config.model)  # a GGUF file is unpacked in float32 only
        policy = load_policy(ModelConfig(path=path, max_context=CONTEXT))
        trunk = trunk_of(policy).to(getattr(torch, self.config.dtype))
        encoder = StepEncoder(policy.tokenizer, CONTEXT)
        seen, states = (features(trunk, encoder, solutions) for solutions in (train, tested))
        return {
            "train_solutions": len(train),
            "prm": self.probe(seen, [s.labels for s in train], states, tested, slice(None)),
            "orm": self.probe(seen, [[s.outcome] for s in train], states, tested, slice(-1, None)),
        }

    def probe(self, seen: Any, labels: Any, states: Any, bench: Sequence[Solution], steps: slice) -> dict[str, Any]:
        """Teach a head the labels of those steps of a solution that have one, and let it find the first error."""
        taught = np.concatenate([np.array(row, float) for row in labels])
        head = fit(np.concatenate([rows[steps] for rows in seen]), taught, self.config.weight_decay)
        right = [head(each) for each in states]
        ends = np.array([row.min() if steps == slice(None) else row[-1] for row in right])
        outcomes = np.array([solution.outcome for solution in bench])
        first_errors = [solution.first_error for solution in bench]
        return {**report(right, first_errors), "answer_auc": round(auc(ends[outcomes], ends[~outcomes]), 4)}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        heads = next(iter(results.values()))
        rows = [
            (name, f"{heads[name]['crossed']['f1']:.3f}", f"{heads[name]['chance']:.3f}", heads[name]["answer_auc"])
            for name in ("prm", "orm")
        ]
        return markdown(("head", "first-error F1", "chance", "answer AUC"), rows)


def rows(source: Any) -> list[Solution]:
    settings = {"sources": ({"source": source},), "heldout_fraction": 0.0}
    datasets = Datasets(DatasetSettings.model_validate(settings), nowhere())
    return read_solutions(datasets.prompts("train"), "newline", datasets.where)


@torch.inference_mode()
def features(trunk: Any, encoder: StepEncoder, solutions: Sequence[Solution]) -> list[Any]:
    coded = [encoder.encode(s.prompt, s.text, s.steps)[:2] for s in solutions]
    states: dict[int, Any] = {}
    for batch in by_length([ids for ids, _ in coded], BATCH_TOKENS):
        ids, mask = pad_rows([coded[i][0] for i in batch], torch.device("cpu"))
        hidden = trunk(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state.float().numpy()
        states |= {i: hidden[row, list(coded[i][1])] for row, i in enumerate(batch)}
    return [states[i] for i in range(len(solutions))]


def fit(features_NH: Any, labels_N: Any, decay: float) -> Head:
    """Logistic regression on standardised features, both classes with equal weight."""
    mean_H, std_H = features_NH.mean(0), features_NH.std(0) + 1e-6
    x_NH = torch.tensor((features_NH - mean_H) / std_H, dtype=torch.float64)
    y_N = torch.tensor(labels_N, dtype=torch.float64)
    weight_N = torch.where(y_N > 0.5, 0.5 / y_N.mean(), 0.5 / (1 - y_N.mean()))
    w = torch.zeros(x_NH.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits_N = x_NH @ w[:-1] + w[-1]
        each = torch.nn.functional.binary_cross_entropy_with_logits(logits_N, y_N, weight=weight_N)
        total = each + decay * w[:-1].square().sum()
        total.backward()
        return total

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    learned = w.detach().numpy()
    return lambda f: 1 / (1 + np.exp(-(((f - mean_H) / std_H) @ learned[:-1] + learned[-1])))
