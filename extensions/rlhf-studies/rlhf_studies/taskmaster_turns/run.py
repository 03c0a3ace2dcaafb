"""A model of turns a seed, and readings without a model on the same held-out rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import UserError
from rlhf_plugin_prm.evaluate import judge
from rlhf_studies.common.outside import data_file
from rlhf_studies.common.pocket import write_jsonl
from rlhf_studies.common.scores import auc_interval
from rlhf_studies.taskmaster_turns.config import TaskmasterTurnsConfig
from rlhf_studies.taskmaster_turns.turns import Row, dialogue, fewer, is_call, read_turns, split
from rlhf_study.runs import train
from rlhf_study.study import Study
from rlhf_study.tables import markdown


class TaskmasterTurns(Study[TaskmasterTurnsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        rows = read_turns(data_file(self.config.data, "taskmaster", "tm-4_reward.jsonl.gz"))[: self.config.limit]
        train_rows, held_out = split(rows, seed)
        learned = fewer(train_rows, self.config.rows, seed)
        wrong = sum(not row["labels"][0] for row in learned) / len(learned)
        if not 0 < wrong < 1:
            raise UserError("the training rows are all right or all wrong", fix="--set limit=... with more rows")
        file, heldout_file = folder / "train.jsonl", folder / "heldout.jsonl"
        write_jsonl(file, learned)
        write_jsonl(heldout_file, held_out)
        run = train(folder / "model", self.training(seed, file, wrong), self.config.train)
        model = judge(str(run.final), str(heldout_file))
        scores = {s.id.rpartition("/")[2]: float(p[-1]) for s, p in zip(model.solutions, model.right)}
        judged = [row for row in held_out if row["id"] in scores]
        kinds = {"": judged, ", calls": [r for r in judged if is_call(r)]}
        kinds[", words"] = [r for r in judged if not is_call(r)]
        return {
            "rows": {"train": len(learned), "train_wrong": wrong, "unscored": len(model.unscored)},
            "seconds": run.summary["seconds"],
            "auc": {
                **{
                    f"{Path(self.config.turn_model).stem}{kind}": of_rows([scores[r["id"]] for r in chosen], chosen)
                    for kind, chosen in kinds.items()
                    if 0 < sum(r["labels"][0] for r in chosen) < len(chosen)
                },
                **{name: of_rows(values, held_out) for name, values in without_a_model(train_rows, held_out).items()},
            },
        }

    def training(self, seed: int, file: Path, wrong: float) -> dict[str, Any]:
        """Of a run; wrong turns weigh as much as right ones together."""
        small = self.config.turn_model == "pocket-tools"
        trainer = {"batch_size": 16, "micro_batch_size": 16, "max_length": 512, "learning_rate": 1e-3}
        if not small:
            trainer |= {"micro_batch_size": 4, "max_length": 384, "learning_rate": 5e-5}
        optimizer = {"learning_rate": trainer.pop("learning_rate"), "warmup_steps": 10}
        often = {"eval_samples": 0, "eval_every": 0, "checkpoint_every": 25, "keep_checkpoints": 1}
        return {
            "seed": seed,
            "model": {"path": self.config.turn_model, **({} if small else {"max_context": 768})},
            "dataset": {"name": "jsonl", "path": str(file.resolve()), "heldout_fraction": 0.0},
            "loss": {"name": "step_bce", "wrong_weight": round((1 - wrong) / wrong, 3)},
            "trainer": {"name": "prm", "epochs": self.config.epochs, "optimizer": optimizer, **trainer, **often},
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [
            (name, seed, row["rows"], row["wrong"], f"{row['auc']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}")
            for seed, figures in results.items()
            for name, row in figures["auc"].items()
        ]
        return markdown(("scored by", "seed", "rows", "wrong", "AUC", "95 % over dialogues"), sorted(rows))


def of_rows(values: Sequence[float], rows: Sequence[Row]) -> dict[str, float]:
    return auc_interval(values, [r["labels"][0] for r in rows], [dialogue(r) for r in rows])


def without_a_model(rows: Sequence[Row], held_out: Sequence[Row]) -> dict[str, list[float]]:
    """What the turn alone tells of held-out rows."""
    seen: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        seen[row["steps"][0].lower()].append(row["labels"][0])
    share = sum(row["labels"][0] for row in rows) / len(rows)
    elsewhere = [seen.get(r["steps"][0].lower(), []) for r in held_out]
    return {
        "words rather than a call": [float(not is_call(r)) for r in held_out],
        "length": [float(len(r["steps"][0])) for r in held_out],
        "place": [float(len(r["prompt"])) for r in held_out],
        "right elsewhere": [(sum(verdicts) + share) / (len(verdicts) + 1) for verdicts in elsewhere],
    }
