"""Bytes of the training states alone, model by model: weights, gradients and moments of full training with AdamW."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlhf_core.models import ModelConfig
from rlhf_plugin_preflight.memory.shapes import SHAPES
from rlhf_plugin_preflight.memory.weightless import describe, on_meta

OURS, TEXTBOOK = 16, 18
"""Bytes of a parameter: float32 weights, gradients and two moments; and with bfloat16 weights beside a float32 master
copy (Rajbhandari et al. 2020, gradients in float32)."""
CARD = 80 * 10**9
NOTE = (
    "Each cell: ours (16 bytes a parameter) / the textbook's (18), in GB of 10^9 bytes, for full training with AdamW. "
    "Activations, caches and gathered layers come on top: rlhf memory plan --model NAME counts them. FSDP on one card "
    "shards nothing: its states are those of the column 'one card', and only activations can fall there."
)


class States(NamedTuple):
    model: str
    parameters: int

    def as_json(self) -> dict[str, Any]:
        ranks = {"one card": 1, "fsdp 4": 4, "fsdp 8": 8}
        sizes = {"ours": OURS, "textbook": TEXTBOOK}
        states = {n: {k: self.per_card(r, each) for k, r in ranks.items()} for n, each in sizes.items()}
        return {**self._asdict(), **states, "cards": {name: self.cards(each) for name, each in sizes.items()}}

    def per_card(self, ranks: int, each: int = OURS) -> float:
        """Bytes a card with everything sharded over ``ranks``; DDP is that of one rank, whatever there are."""
        return self.parameters * each / ranks

    def cards(self, each: int = OURS) -> int:
        """Fewest cards of 80 GB that hold the states sharded."""
        return math.ceil(self.parameters * each / CARD)


def states_of(names: Sequence[str] = ()) -> list[States]:
    """Of published shapes by name, the smallest first; of aliases the first."""
    counted: dict[int, States] = {}
    for name in names or SHAPES:
        config = ModelConfig(path=name)
        model = on_meta(describe(config), config)
        parameters = sum(weight.numel() for weight in model.parameters())
        counted.setdefault(parameters, States(name, parameters))
    return [counted[parameters] for parameters in sorted(counted)]


def table_of(states: Sequence[States]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: each cell is ours, then the textbook's."""

    def both(row: States, ranks: int) -> str:
        return " / ".join(f"{row.per_card(ranks, each) / 1e9:,.1f}" for each in (OURS, TEXTBOOK))

    headers = ["model", "parameters", "DDP or one card, GB", "FSDP 4", "FSDP 8", "fewest 80 GB cards"]
    return headers, [
        [
            row.model,
            f"{row.parameters / 1e6:,.0f} M",
            *(both(row, ranks) for ranks in (1, 4, 8)),
            " / ".join(str(row.cards(each)) for each in (OURS, TEXTBOOK)),
        ]
        for row in states
    ]
