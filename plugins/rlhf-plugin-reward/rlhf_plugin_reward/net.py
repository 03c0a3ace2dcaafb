"""Reward networks: a trunk, and one or several scalar heads on the last token.

Suffixes: ``_B`` conversations, ``_K`` heads, ``_H`` hidden size. Lengths are carried, never inferred from pad ids,
so a score does not depend on its batch or padding.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from rlhf_core.config import BuildContext
from rlhf_core.models import LoadedModel, ModelConfig, ModelError, has_meta_weights, split_lm_head
from rlhf_core.models.last_token import can_pack, last_token_hidden
from rlhf_core.models.load import context_length
from rlhf_core.models.slices import ValuesForAdapters
from rlhf_plugin_reward.padding import without_padding

MOST_CACHED = 1 << 18
"""Conversations whose features a frozen trunk keeps, in main memory: a few thousand bytes each."""


class RewardNet(torch.nn.Module):
    """``scores_BK = head(trunk(conversation)[last token])``, of a trunk without its language-model head and a head
    ``Linear(H, K)``.
    """

    def __init__(self, trunk: Any, head: torch.nn.Linear, frozen: bool = False) -> None:
        super().__init__()
        self.trunk, self.head, self.frozen = trunk, head, frozen
        self.without_padding = True
        self.pad_id: int | None = None
        """Of a model from elsewhere, whose score is that of the last other token."""
        self.cached_features: dict[tuple[int, ...], torch.Tensor] = {}
        """Features of conversations, of a frozen trunk."""
        if frozen:
            trunk.requires_grad_(False)

    @property
    def context(self) -> int:
        """Tokens that the trunk takes."""
        return context_length(self.trunk, ModelConfig())

    def can_pack(self) -> bool:
        """Whether packed rows give the trunk's own hidden states; the first call runs two small forwards."""
        return can_pack(self.trunk)

    def forward(self, ids_B: Sequence[Sequence[int]]) -> torch.Tensor:
        """Scores ``[B, K]`` of tokenized conversations."""
        return self.head(
            self.features(ids_B if self.pad_id is None else self._read(ids_B)).to(self.head.weight.dtype)
        ).float()

    def _read(self, ids_B: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        return [without_padding(row, self.pad_id) for row in ids_B]

    def scores_without_cache(self, ids_B: Sequence[Sequence[int]]) -> torch.Tensor:
        """Scores ``[B, K]`` without features that were kept: every call is one forward of the trunk."""
        ids_B = ids_B if self.pad_id is None else self._read(ids_B)
        hidden_BH = last_token_hidden(self.trunk, ids_B, without_padding=self.without_padding)
        return self.head(hidden_BH.to(self.head.weight.dtype)).float()

    def features(self, ids_B: Sequence[Sequence[int]]) -> torch.Tensor:
        """Last-token hidden states ``[B, H]``; while a head is trained on a frozen trunk, computed once and kept."""
        if self.frozen and not torch.is_inference_mode_enabled():
            return torch.stack([self._cached_feature(tuple(row)) for row in ids_B]).to(self.head.weight.device)
        return last_token_hidden(self.trunk, ids_B, without_padding=self.without_padding)

    def _cached_feature(self, row: tuple[int, ...]) -> torch.Tensor:
        """What :meth:`keep` was not given is computed alone: its last bits must not depend on the batch."""
        if row not in self.cached_features and len(self.cached_features) < MOST_CACHED:
            self.keep([row])
        return self.cached_features[row] if row in self.cached_features else self._without_gradient([row])[0]

    def keep(self, ids_B: Sequence[tuple[int, ...]]) -> None:
        """Compute and keep the features of some conversations."""
        self.cached_features.update(
            (row, feature.clone()) for row, feature in zip(ids_B, self._without_gradient(ids_B))
        )

    @torch.no_grad()
    def _without_gradient(self, ids_B: Sequence[Sequence[int]]) -> torch.Tensor:
        return last_token_hidden(self.trunk, ids_B, without_padding=self.without_padding).cpu()


def new_head(hidden: int, heads: int, seed: int) -> torch.nn.Linear:
    head = torch.nn.Linear(hidden, heads, bias=False)
    with torch.no_grad():
        head.weight.normal_(0, hidden**-0.5, generator=torch.Generator().manual_seed(seed))
    return head


def trunk_of(policy: LoadedModel) -> Any:
    """The transformer under a causal language model."""
    parts = split_lm_head(policy.model)
    if parts is None:
        raise ModelError(
            f"model '{policy.source}' has no separate trunk and head", fix="use another model for the reward"
        )
    return parts.trunk


def with_adapters(trunk: Any, seed: int) -> Any:
    """A trunk with low-rank adapters on every linear layer, seeded."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    settings = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="FEATURE_EXTRACTION")
    with ValuesForAdapters(trunk):
        return get_peft_model(trunk, settings)


def fresh_net(policy: LoadedModel, heads: int, seed: int, sharing: str, *, copy_trunk: bool = True) -> RewardNet:
    """A net on a policy's trunk: whole, with adapters, or frozen."""
    trunk = copy.deepcopy(trunk_of(policy)) if copy_trunk else trunk_of(policy)
    if sharing == "lora":
        trunk = with_adapters(trunk, seed)
    return RewardNet(trunk, new_head(int(trunk.config.hidden_size), heads, seed), frozen=sharing == "frozen")


def net_to_train(policy: LoadedModel, heads: int, ctx: BuildContext, train_trunk: str) -> RewardNet:
    """A net on the trunk of a policy that :func:`rlhf_core.training.load_trained_policy` loaded; without weights each
    rank reads its part once the strategy has divided the net."""
    sharing = "none" if train_trunk == "full" else train_trunk
    net = fresh_net(policy, heads, ctx.seed, sharing, copy_trunk=False)
    return net if has_meta_weights(net) else net.to(ctx.strategy.device)
