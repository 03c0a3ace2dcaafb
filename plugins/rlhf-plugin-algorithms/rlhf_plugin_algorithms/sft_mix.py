"""A cross-entropy on demonstrations beside the policy gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext
from rlhf_core.data import Datasets
from rlhf_core.models import Formatter
from rlhf_plugin_algorithms.estimated import Estimated
from rlhf_plugin_algorithms.signals import Example, Scored, Signals
from rlhf_plugin_sft.task import last_answer


class SftMix(Estimated):
    """See SftMixConfig. Rows come in an order that the seed decides, anew in each pass; the place is checkpointed."""

    def __init__(self, config: Any, ctx: BuildContext) -> None:
        super().__init__(config, ctx)
        self.seed, self.taken = ctx.seed, 0
        self.examples = fitting(config, ctx)

    def signals(self, scored: Scored) -> Signals:
        """The estimator's, and the next demonstrations."""
        made = super().signals(scored)
        examples = [self._example() for _ in range(self.config.rows)]
        return replace(made, examples=examples, nothing="")

    def _example(self) -> Example:
        epoch, place = divmod(self.taken, len(self.examples))
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.examples))
        self.taken += 1
        return self.examples[order[place]]

    def state_dict(self) -> dict[str, Any]:
        """How many rows were taken, and the estimator's state."""
        return {**super().state_dict(), "taken": self.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the next row."""
        super().load_state_dict(state)
        self.taken = int(state["taken"])


def fitting(config: Any, ctx: BuildContext) -> list[Example]:
    """The demonstrations that the model's context holds; the others are counted, and refused where they are many."""
    datasets, model, limit = Datasets(config.dataset, ctx), ctx.config.model, ctx.policy.context
    formatter = Formatter(ctx.policy.tokenizer, model.prompt_format, model.tool_format)
    rows, sizes, examples = datasets.demonstrations("train"), list[tuple[str, str, int]](), list[Example]()
    for row in rows:
        prompt, completion, learned = last_answer(formatter, row.prompt, row.completion, row.turn, row.tools)
        sizes.append((row.id, row.source, len(prompt) + len(completion)))
        if sizes[-1][2] <= limit:
            examples.append(Example(row.id, prompt, completion, config.weight, np.array(learned)))
    datasets.check_lengths(sizes, limit, f"the model's context is {limit}", "", context=limit)
    if ctx.session is not None:
        ctx.session.counts.update(+Counter({"examples_too_long": len(rows) - len(examples)}))
    return examples
