"""Reward networks: a trunk, and one or several scalar heads on the last token.

Suffixes: ``_B`` conversations, ``_K`` heads, ``_H`` hidden size. Lengths are carried, never inferred from pad ids,
so a score does not depend on its batch or padding.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rlhf_core.config import BuildContext
from rlhf_core.models import (
    LoadedModel,
    ModelConfig,
    ModelError,
    TransformerWithHead,
    has_no_weights,
    last_token_hidden,
    load_tokenizer,
    resolve_model,
    take_apart,
)
from rlhf_plugin_reward.encoding import View, write_view

MOST_CACHED = 1 << 18
"""Conversations whose features a frozen trunk keeps, in main memory: a few thousand bytes each."""


class RewardNet(TransformerWithHead):
    """``scores_BK = head(trunk(conversation)[last token])``."""

    def __init__(self, trunk: Any, head: torch.nn.Linear, frozen: bool = False) -> None:
        super().__init__(trunk, head)
        self.frozen = frozen
        self.without_padding = True
        self.cached_features: dict[tuple[int, ...], torch.Tensor] = {}
        """Features of conversations, of a frozen trunk."""
        if frozen:
            trunk.requires_grad_(False)

    def forward(self, ids_B: Sequence[Sequence[int]]) -> torch.Tensor:
        """Scores ``[B, K]`` of tokenized conversations."""
        return self.head(self.features(ids_B).to(self.head.weight.dtype)).float()

    def scores_anew(self, ids_B: Sequence[Sequence[int]]) -> torch.Tensor:
        """Scores ``[B, K]`` without features that were kept: every call is one forward of the trunk."""
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
    parts = take_apart(policy.model)
    if parts is None:
        raise ModelError(
            f"model '{policy.source}' has no separate trunk and head", fix="use another model for the reward"
        )
    return parts.trunk


def fresh_net(policy: LoadedModel, heads: int, seed: int, sharing: str, *, copy_trunk: bool = True) -> RewardNet:
    """A net on a policy's trunk: whole, with adapters, or frozen."""
    trunk = copy.deepcopy(trunk_of(policy)) if copy_trunk else trunk_of(policy)
    if sharing == "lora":
        trunk = RewardNet.with_adapters(trunk, seed)
    return RewardNet(trunk, new_head(int(trunk.config.hidden_size), heads, seed), frozen=sharing == "frozen")


def net_to_train(policy: LoadedModel, heads: int, ctx: BuildContext, train_trunk: str) -> RewardNet:
    """A net on the trunk of a policy that :func:`rlhf_core.training.load_trained_policy` loaded; without weights each
    rank reads its part once the strategy has divided the net."""
    sharing = "none" if train_trunk == "full" else train_trunk
    net = fresh_net(policy, heads, ctx.seed, sharing, copy_trunk=False)
    return net if has_no_weights(net) else net.to(ctx.strategy.device)


def save_classifier(
    net: RewardNet, tokenizer: Any, folder: Path, weights: Mapping[str, Any] | None = None, view: View | None = None
) -> None:
    """Write a one-head net so that ``AutoModelForSequenceClassification`` loads it with one label."""
    net.save_classifier(folder, tokenizer.pad_token_id, weights)
    tokenizer.save_pretrained(folder)
    write_view(view or View(), folder)


def check_vocabulary(model: Any, tokenizer: Any, path: str) -> None:
    """Refuse a tokenizer of another model: it has words past the embedding, except for unused special tokens."""
    rows, special = int(model.get_input_embeddings().weight.shape[0]), set(tokenizer.all_special_ids)
    beyond = sorted((i, word) for word, i in tokenizer.get_vocab().items() if i >= rows and i not in special)
    if beyond:
        raise ModelError(
            f"the tokenizer of '{path}' is not its model's",
            why=f"{len(beyond)} tokens, first {beyond[0][1]!r}, lie past the {rows} that the model embeds",
            fix="copy the tokenizer files that belong to these weights into the folder",
        )


def load_classifier(path: str, chat_template: str | None = None) -> tuple[RewardNet, Any]:
    """A reward model trained here or elsewhere, and its tokenizer."""
    tokenizer = load_tokenizer(ModelConfig(path=path, chat_template=chat_template))
    model = _load_model(path)
    if model.config.num_labels != 1:
        raise ModelError(
            f"reward model '{path}' has {model.config.num_labels} labels, a reward needs one",
            fix="give a sequence classifier that was trained with num_labels=1",
        )
    check_vocabulary(model, tokenizer, path)
    net = RewardNet.from_classifier(model).eval()
    check_pooling(net, model.eval(), tokenizer, path)
    return net, tokenizer


def _load_model(path: str) -> Any:
    from transformers import AutoModelForSequenceClassification

    source = resolve_model(path)
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            source.place, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"reward model '{path}' cannot be loaded",
            why=str(error).splitlines()[0],
            fix="give a folder saved by AutoModelForSequenceClassification with one label",
        ) from error
    missing_weights = [k for k in info["missing_keys"] if "score" in k or "classifier" in k]
    if missing_weights:
        raise ModelError(
            f"'{path}' is not a trained reward model",
            why=f"its weights lack {', '.join(missing_weights)}, as those of a language model do",
            fix="train one: rlhf train --algo reward_model",
        )
    return model


PROBE = "Is the sky blue? Yes, on most days it is."


@torch.inference_mode()
def check_pooling(net: RewardNet, model: Any, tokenizer: Any, path: str) -> None:
    """Refuse a classifier whose own logit is not ``head(last token)``: another token's, pooled, or changed after."""
    ids = [i for i in tokenizer.encode(PROBE, add_special_tokens=False) if i != tokenizer.pad_token_id]
    device = net.head.weight.device
    model_score = float(model(input_ids=torch.tensor([ids], device=device)).logits[0, 0])
    head_score = float(net([ids])[0, 0])
    if not abs(head_score - model_score) <= net.tolerance * max(1.0, abs(model_score)):
        raise ModelError(
            f"reward model '{path}' does not score by a linear head on the last token",
            why=f"{type(model).__name__} gives a probe text {model_score:.4g}, "
            f"its head on the last token {head_score:.4g}",
            fix="use a decoder with a scalar head, or score with this one in a reward plugin of your own",
        )
