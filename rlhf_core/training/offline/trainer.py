"""The offline loop: demonstrations or pairs through the learner, checkpoints and streams of an on-policy run."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from rlhf_core.config.run import precision_of
from rlhf_core.data.datasets import Datasets
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.data.order import ExampleOrder, by_source, check_fingerprint, interleave
from rlhf_core.models.precision import computes_in_16_bits
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.plugins.hooks import StepMetrics
from rlhf_core.plugins.loss_contract import CheckedLoss, LossTerm
from rlhf_core.plugins.protocols import Loss
from rlhf_core.runs.checkpoint import Checkpoint
from rlhf_core.runs.component_set import register_sources
from rlhf_core.runs.metrics import first_and_last
from rlhf_core.training.learner import Learner
from rlhf_core.training.loop import run_loop
from rlhf_core.training.offline.config import OfflineTrainerConfig, PolicyTrainerConfig
from rlhf_core.training.trace import ExampleRecorder, example_rows
from rlhf_core.types.errors import DatasetError

log = logging.getLogger("rlhf")


class OfflineTask(Protocol):
    """What makes an offline run SFT, reward modelling, or a preference loss.

    A task may also have ``texts(item)``, which gives an example's texts by name (``rlhf trace show`` then shows them),
    and ``complete(split, items)``, which gives the examples that the run will use, and only those, what takes time to
    compute, such as reference logprobs; it is called once per split, on all ranks, before training.

    Its model may have no weights until the trainer has prepared ``module``
    (:func:`rlhf_core.training.loop.load_trained_policy`).
    """

    @property
    def module(self) -> torch.nn.Module:
        """``module(items)`` returns the batch that the loss consumes."""
        ...

    @property
    def model(self) -> torch.nn.Module:
        """The part of ``module`` that is saved."""
        ...

    def items(self, split: str) -> Sequence[Any]:
        """Tokenized examples of ``train`` or ``heldout``; what is dropped is counted."""
        ...

    def write_model(self, folder: Path, weights: Mapping[str, Any]) -> None:
        """Write the weights of ``model``, given by name, for a checkpoint."""

    def load_model(self, folder: Path) -> None:
        """Read them back."""

    def write_final(self, folder: Path, weights: Mapping[str, Any]) -> None:
        """Write the final model in Hugging Face form."""


class OfflineTrainer:
    """Walks the examples in seeded order, one update per batch.

    Args:
        config: sizes and settings.
        ctx: session and strategy.
        task: examples, forward and saving.
    """

    learner: Learner

    def __init__(self, config: OfflineTrainerConfig, ctx: BuildContext, task: OfflineTask) -> None:
        self.config, self.ctx, self.task = config.micro_batches(ctx.world_size), ctx, task
        self.session, self.strategy = ctx.session, ctx.strategy
        self.train_items, held_items = list(task.items("train")), list(task.items("heldout"))
        datasets = getattr(task, "datasets", None)
        self.datasets = datasets if isinstance(datasets, Datasets) else None
        if self.datasets:
            self.session.counts.update(self.datasets.counts)  # a resumed run replaces them by its checkpoint's
            register_sources(self.datasets, ctx)
        order = interleave(self._sources(held_items), self._weights)
        self.held_items = [held_items[i] for i in order][: config.eval_samples]
        if not self.train_items:
            raise DatasetError("no example is left to train on", fix="raise trainer.max_length or check the dataset")
        self.data = self.datasets.fingerprint if self.datasets else ""
        shuffle = self.datasets.settings.shuffle if self.datasets else True
        self.order = ExampleOrder(self._sources(self.train_items), self._weights, ctx.seed, shuffle)
        self.draws = max(1, round(len(self.train_items) * config.epochs))
        updates = math.ceil(self.draws / config.batch_size)
        self.steps = self.session.metrics.total_steps = min(updates, config.max_steps or updates)
        self._complete_items()
        self.before: dict[str, float] | None = None
        self.samples: Any = None
        if isinstance(config, PolicyTrainerConfig) and config.sample_prompts > 0:
            self.samples = scheduler("samples", "trainer.sample_prompts")()(config, ctx, task)

    def run(self) -> Mapping[str, Any]:
        """Train and return the summary."""
        return run_loop(self, self.session, self.config, self.steps)

    def start(self, checkpoint: Checkpoint | None) -> int:
        """Prepare module, loss and optimizer; evaluate before training, or go on from the checkpoint."""
        if checkpoint is not None:
            check_fingerprint("dataset", checkpoint.state["data"], self.data)
            self.task.load_model(checkpoint.model)
        if precision_of(self.ctx.config) != "fp32" and not computes_in_16_bits(self.task.module):
            log.warning(
                "trainer.precision has no effect: '%s' did not load its model with load_trained_policy",
                self.config.name,
            )
        path = self.ctx.config.model.path
        self.learner = Learner.preparing(self.task.module, self.loss(), self.strategy, self.config, self.steps, path)
        if self.samples:
            self.samples.start(self.learner.module)
        if checkpoint is None:
            self.before = self.evaluate(0)
            return 0
        self.learner.load_state_dict(checkpoint.state["learner"])
        self.before = checkpoint.state["before"]
        if self.samples:
            self.samples.load_state_dict(checkpoint.state["sampled"])
        self.session.checkpoints.restore(checkpoint)
        return checkpoint.step

    def _complete_items(self) -> None:
        complete = getattr(self.task, "complete", None)
        if complete is None:
            return
        used = sorted({i for step in range(1, self.steps + 1) for i in self.batch(step)})
        for i, item in zip(used, complete("train", [self.train_items[i] for i in used]), strict=True):
            self.train_items[i] = item
        self.held_items = list(complete("heldout", self.held_items))

    def loss_terms(self) -> Sequence[LossTerm]:
        """Terms that a trainer adds to the run's loss."""
        return ()

    def loss(self) -> Loss:
        """The run's loss, checked, with the trainer's terms."""
        return CheckedLoss(self.session.components.build_slot("loss", self.ctx), terms=self.loss_terms())

    def prepared(self, step: int, items: list[Any]) -> list[Any]:
        """A whole batch (of all ranks) as the loss is to see it; a trainer may add what only the batch knows.

        Args:
            step: the step it is for; that of the last update made, where it is only measured.
            items: examples, the same on every rank.
        """
        return items

    def step(self, step: int) -> None:
        """One update."""
        began = time.perf_counter()
        batch = [self.train_items[i] for i in self.batch(step)]
        tokens = sum(i.tokens for i in batch)
        self.session.hooks.fire("rlhf_batch_ready", StepMetrics(step, {"sequences": len(batch), "tokens": tokens}))
        recorder = ExampleRecorder()
        metrics = self.learner.update(self._share(self.prepared(step, batch)), observe=recorder)
        rows = example_rows(self.task, batch, recorder.rows, self.strategy, self.config.trace_prompts)
        row = {"event": "update", "examples": [i.name for i in batch], "rows": rows, "metrics": metrics}
        self.session.trace(step, "step", [row])
        self.session.metrics.log_step(step, metrics, {"update": time.perf_counter() - began})

    def _share(self, items: list[Any]) -> list[Any]:
        return items[self.strategy.rank :: self.strategy.world_size]

    def batch(self, step: int) -> list[int]:
        """Indices of one step's examples: sources by weight, each walked in fresh seeded permutations.

        The last batch of the last epoch is smaller when the examples do not divide evenly.
        """
        size = self.config.batch_size
        first = (step - 1) * size
        return self.order.draws(first, min(size, self.draws - first))

    @property
    def _weights(self) -> dict[str, float]:
        return {"": 1.0, **(self.datasets.weights if self.datasets else {})}

    def _sources(self, items: Sequence[Any]) -> list[str]:
        """Source of each item, known by its name; a task without the run's datasets has one source."""
        return [self.datasets.source_of(i.name) if self.datasets else "" for i in items]

    def evaluate(self, step: int) -> dict[str, float] | None:
        """Measure and record; None where nothing is measured."""
        metrics = self.evaluation(step)
        if metrics:
            self.session.metrics.log_eval(step, metrics)
        return metrics or None

    def evaluation(self, step: int) -> dict[str, float]:
        """Held-out metrics after a step, under names that begin with ``eval/``; {} without held-out examples."""
        sampled = self.samples.run(step, self.learner.version) if self.samples else {}
        if not self.held_items:
            return sampled
        metrics = self._measure("eval", self.held_items, step)
        places_by_source = by_source(self._sources(self.held_items))
        for source, indices in places_by_source.items() if len(places_by_source) > 1 else ():
            metrics |= self._measure(f"eval/{source}", [self.held_items[i] for i in indices], step)
        return metrics | sampled

    def _measure(self, prefix: str, items: list[Any], step: int) -> dict[str, float]:
        share = self._share(self.prepared(step, items))
        with self.session.work("evaluation", len(share)) as advance:
            return {f"{prefix}/{k}": v for k, v in self.learner.measure(share, advance).items()}

    def save(self, step: int) -> None:
        """Write the checkpoint of a step, unless it is there."""
        if not self.session.checkpoints.saved(step):
            state = {
                "learner": self.learner.state_dict(),
                "before": self.before,
                "data": self.data,
                "sampled": self.samples.state_dict() if self.samples else None,
            }
            self.session.checkpoints.save(step, state, self.task.model, self.task.write_model)

    def finish(self, step: int) -> dict[str, Any]:
        """Evaluate, write the final model and the summary."""
        self.learner.keep_final_weights()
        after = self.evaluate(step)
        self.session.checkpoints.write_final(self.task.model, self.task.write_final)
        rows = [r for r in read_jsonl(self.session.dir.path / "metrics.jsonl") if "grad_norm" in r]
        summary = {
            "algo": self.config.name,
            "steps": len(rows),
            "updates": self.learner.version,
            "seed": self.ctx.seed,
            "train_examples": len(self.train_items),
            "tokens_generated": 0,
            "tokens_trained": int(sum(r["train/tokens"] for r in rows)),
            **first_and_last(rows, "loss", "loss"),
            "evaluation_before": self.before,
            "evaluation_after": after,
            "reports": dict(self.ctx.report),
            **self.more_summary(),
        }
        return self.session.finish(summary)

    def more_summary(self) -> dict[str, Any]:
        """What a trainer adds to the summary."""
        return self.samples.summary() if self.samples else {}
