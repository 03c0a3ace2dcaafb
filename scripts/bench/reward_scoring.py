"""Pairs per second of scoring with a reward model: ours, TRL's RewardTrainer and transformers' pipeline.

SmolLM2-135M as a one-label classifier, float32, CPU, pairs of hh-rlhf. ``ours`` starts from texts, without padding and
with a pair's common conversation computed once; ``TRL`` is ``RewardTrainer.evaluate()``, which had tokenized the pairs
before the clock starts. Every side's scores are compared with ours.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench._sides import as_folder, smollm2

THREADS, PAIRS, ROUNDS, MAX_LENGTH, BATCH = 2, 64, 3, 512, 8
CLOSE = 2e-3
"""Largest difference of two sides' scores, in standard deviations of the scores."""


class Contest:
    """The same weights and the same texts for every side; pairs of more than ``MAX_LENGTH`` tokens are left out, for
    every side cuts them otherwise."""

    def __init__(self, data: Path, pairs: int, folder: Path) -> None:
        import torch
        from datasets import Dataset
        from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
        from trl.trainer.reward_config import RewardConfig
        from trl.trainer.reward_trainer import RewardTrainer

        from rlhf_core.data.conversations import transcript
        from rlhf_core.data.files import read_rows
        from rlhf_core.models.config import ModelConfig
        from rlhf_core.models.load import load_policy
        from rlhf_plugin_reward.classifier_files import save_classifier
        from rlhf_plugin_reward.config import BradleyTerryConfig
        from rlhf_plugin_reward.net import fresh_net
        from rlhf_plugin_reward.reward import SingleReward

        torch.set_num_threads(THREADS)
        policy = load_policy(ModelConfig(path=str(as_folder(smollm2()))))
        save_classifier(fresh_net(policy, 1, 0, "none"), policy.tokenizer, folder / "rm")
        self.ours = SingleReward.load(BradleyTerryConfig(path=str(folder / "rm"), max_length=MAX_LENGTH), "cpu")
        self.talks: list[tuple[Any, str]] = []
        self.tokens = 0
        for row in read_rows(str(data / "hh_rlhf" / "pairs.jsonl.gz")).rows:
            sides = [transcript(row[side]) for side in ("chosen", "rejected")]
            ids = [self.ours.encoder.sides(*side) for side in sides]
            if len(self.talks) < 2 * pairs and all(len(p) + len(a) <= MAX_LENGTH for p, a in ids):
                self.talks += sides
                self.tokens += sum(len(p) + len(a) for p, a in ids)
        ids = [list(self.ours.encoder.encode(*talk)) for talk in self.talks]
        tokenizer: Any = AutoTokenizer.from_pretrained(folder / "rm")
        self.texts = [tokenizer.decode(row) for row in ids]
        self.theirs: Any = AutoModelForSequenceClassification.from_pretrained(folder / "rm").eval()
        rows = Dataset.from_list([{"chosen_ids": a, "rejected_ids": b} for a, b in zip(ids[::2], ids[1::2])])
        options = RewardConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            per_device_eval_batch_size=BATCH,
            max_length=None,
            gradient_checkpointing=False,
        )
        self.trl: Any = RewardTrainer(
            self.theirs, options, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer
        )
        self.pipe: Any = pipeline(
            "text-classification", model=self.theirs, tokenizer=tokenizer, function_to_apply="none", device="cpu"
        )

    def score(self, kind: Any = "auto", without_padding: bool = True, warm_up: bool = False) -> list[float]:
        """Our scores, from texts; ``warm_up``: of one pair, so that what is found out once per model is."""
        from rlhf_core.data import Prompt
        from rlhf_core.models.layers.matmul import use_matmul_backend
        from rlhf_core.rewards import Sample

        use_matmul_backend(kind)
        self.ours.net.without_padding = without_padding
        try:
            scores = self.ours.score(
                [Sample(Prompt("p", prompt), text) for prompt, text in (self.talks[:2] if warm_up else self.talks)]
            )
        finally:
            use_matmul_backend("torch")
        return [float(s.value) for s in scores if s.value is not None]

    def evaluate(self) -> list[float]:
        """TRL's evaluation; it reports means only, and prints them."""
        with redirect_stdout(sys.stderr):
            metrics = self.trl.evaluate()
        return [float(metrics["eval_mean_reward"])]

    def classify(self, batch: int) -> list[float]:
        rows = self.pipe(self.texts, batch_size=batch, add_special_tokens=False)
        return [float(row["score"]) for row in rows]

    def sides(self) -> dict[str, Callable[[], list[float]]]:
        return {
            "ours": self.score,
            "ours, torch's products": partial(self.score, "torch"),
            "ours, padded": partial(self.score, "torch", False),
            "TRL": self.evaluate,
            "pipeline, batch of 1": partial(self.classify, 1),
            f"pipeline, batch of {BATCH}": partial(self.classify, BATCH),
        }


def difference(name: str, scores: list[float], wanted: list[float]) -> float:
    """Largest difference of a side's scores (or of their mean) from ours, in standard deviations of ours."""
    against = wanted if len(scores) == len(wanted) else [statistics.mean(wanted)]
    gap = max(abs(a - b) for a, b in zip(scores, against, strict=True)) / statistics.pstdev(wanted)
    if gap > CLOSE:
        raise SystemExit(f"{name} scores something else: {gap:.2g} standard deviations away")
    return float(f"{gap:.1e}")


def contest(data: Path, pairs: int = PAIRS, rounds: int = ROUNDS, only: Sequence[str] = ()) -> dict[str, Any]:
    """Pairs per second of each side; ``only`` names those that take part beside ours, if not all."""
    seconds: dict[str, list[float]] = {}
    cpu_seconds: dict[str, list[float]] = {}
    scores: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        match = Contest(data, pairs, Path(scratch))
        match.score(warm_up=True)
        for n in range(rounds):
            sides = [(k, v) for k, v in match.sides().items() if not only or k in ("ours", *only)]
            for name, side in sides if n % 2 == 0 else sides[::-1]:
                start, cpu_start = time.perf_counter(), time.process_time()
                scores[name] = side()
                seconds.setdefault(name, []).append(time.perf_counter() - start)
                cpu_seconds.setdefault(name, []).append(time.process_time() - cpu_start)
                print(
                    f"round {n + 1}, {name}: {seconds[name][-1]:.1f} s, of processors {cpu_seconds[name][-1]:.1f} s",
                    file=sys.stderr,
                    flush=True,
                )
        count = len(match.talks) // 2
    ours = seconds["ours"]
    others = {name: [o / s for o, s in zip(rows, ours)] for name, rows in seconds.items() if name != "ours"}
    cpu = {name: statistics.median(rows) for name, rows in cpu_seconds.items()}
    return {
        "pairs": count,
        "tokens": match.tokens,
        "pairs_per_second": {name: round(count / statistics.median(s), 2) for name, s in seconds.items()},
        "times_as_fast_as": {name: round(statistics.median(r), 2) for name, r in others.items()},
        "by_round": {name: [round(x, 2) for x in r] for name, r in others.items()},
        "cpu_seconds": {name: round(x, 2) for name, x in cpu.items()},
        "cpu_times_as_fast_as": {name: round(x / cpu["ours"], 2) for name, x in cpu.items() if name != "ours"},
        "score_difference_in_stds": {name: difference(name, s, scores["ours"]) for name, s in scores.items()},
        "threads": THREADS,
        "rounds": rounds,
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def run(
    data: Path | None = None, pairs: int = PAIRS, rounds: int = ROUNDS, sides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """``sides`` are those beside ours, if not all."""
    folder = data or os.environ.get("RLHF_TEST_DATA")
    if not folder:
        raise SystemExit("give data=FOLDER, or set RLHF_TEST_DATA: it holds hh_rlhf/pairs.jsonl.gz")
    return contest(Path(folder), pairs, rounds, sides)
