"""A policy and the preference pairs it learns from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import Datasets
from rlhf_core.models import Formatter
from rlhf_core.training import load_trained_policy
from rlhf_plugin_dpo.config import PreferenceTrainerConfig
from rlhf_plugin_dpo.items import Side, encode_pair, length, sides_of
from rlhf_plugin_dpo.pair_module import PairModule
from rlhf_plugin_dpo.reference import cached_logprobs


class PairTask:
    """Tokenizes the pairs and gives those that the run will use their reference logprobs, once, before training."""

    def __init__(
        self, config: PreferenceTrainerConfig, ctx: BuildContext, ld_alpha: float = 1.0, conversation: bool = False
    ) -> None:
        self.config, self.ctx = config, ctx
        self.datasets = Datasets(ctx.config.dataset, ctx)
        self.check_rows()
        self.policy = load_trained_policy(ctx)
        self.formatter = Formatter(self.policy.tokenizer, ctx.config.model.prompt_format)
        self.model = self.policy.model
        self.ld_alpha = ld_alpha
        self.paths = {"shared_prefix": config.share_prefix}
        self.module = PairModule(self.model, ld_alpha, conversation, self.paths)

    def check_rows(self) -> None:
        self.datasets.pairs("train")

    @property
    def wants_reference(self) -> bool:
        need = getattr(self.ctx.config.loss, "reference", "optional")
        return need != "unused" and not self.config.reference_free

    def items(self, split: str) -> Sequence[Any]:
        """Tokenize; pairs over ``max_length`` or the model's context, and pairs of equal tokens, are counted."""
        config, counts = self.config, self.ctx.session.counts
        limit = min(config.max_length, self.policy.context)
        pairs = self.datasets.pairs(split)
        items = [encode_pair(pair, self.formatter) for pair in pairs]
        sizes = [(pair.id, pair.source, length(item)) for pair, item in zip(pairs, items)]
        limits = f"max_length {config.max_length}, context {self.policy.context}"
        self.datasets.check_lengths(sizes, limit, limits, "raise trainer.max_length", context=self.policy.context)
        fitting = [item for item in items if length(item) <= limit]
        different = [item for item in fitting if item.chosen.completion_ids != item.rejected.completion_ids]
        too_long, identical = len(items) - len(fitting), len(fitting) - len(different)
        counts.update(+Counter({"pairs_too_long": too_long, "pairs_identical_tokens": identical}))
        return different

    def complete(self, split: str, items: Sequence[Any]) -> Sequence[Any]:
        """Give the examples that the run will use their reference logprobs, if the loss looks at them."""
        if not self.wants_reference:
            return items
        refs = self._references(sides_of(items), split)
        return [item.with_refs(refs[2 * n], refs[2 * n + 1]) for n, item in enumerate(items)]

    def _references(self, sides: Sequence[Side], split: str) -> list[float]:
        if not sides:
            return []
        size, placed = self.config.micro_batch_size, self.config.reference
        dtype = placed.dtype if placed else None
        return cached_logprobs(self.model, sides, self.ctx, split, self.ld_alpha, self.paths, size, dtype)

    def texts(self, item: Any) -> Mapping[str, str]:
        decode = self.policy.tokenizer.decode
        return {
            "prompt": decode(item.chosen.prompt_ids),
            "chosen_text": decode(item.chosen.completion_ids),
            "rejected_text": decode(item.rejected.completion_ids),
        }

    def write_model(self, folder: Path, weights: Mapping[str, Any]) -> None:
        self.policy.save(folder, weights)

    def load_model(self, folder: Path) -> None:
        self.policy.load_weights(folder)

    def write_final(self, folder: Path, weights: Mapping[str, Any]) -> None:
        self.policy.save(folder, weights, merge=True)
