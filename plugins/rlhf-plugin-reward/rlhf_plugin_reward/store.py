"""An ensemble on disk: ``ensemble.json`` and either one classifier folder per member or a trunk with stacked heads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rlhf_core.data import PreferencePair, cache_folder, verify_files
from rlhf_core.models import ModelConfig, check_finite, load_tokenizer, resolve_model, weights_digest
from rlhf_plugin_reward.classifier_files import save_trunk
from rlhf_plugin_reward.config import EnsembleConfig
from rlhf_plugin_reward.encoding import EARLIER_LENGTH
from rlhf_plugin_reward.net import RewardNet

DECIDES = (
    "members",
    "sharing",
    "max_pairs",
    "heldout_pairs",
    "epochs",
    "batch_size",
    "optimizer",
    "loss",
    "max_length",
    "truncation",
    "turns",
)
"""Settings that change the trained weights; how scores are combined is not among them."""


def cache_root() -> Path:
    """Where trained ensembles are kept: ``$RLHF_CACHE/ensembles``, by default under ``~/.cache/rlhf``."""
    return cache_folder() / "ensembles"


def digest(
    config: EnsembleConfig,
    base: ModelConfig,
    train: Sequence[PreferencePair],
    heldout: Sequence[PreferencePair],
    seed: int,
) -> str:
    """Content hash of everything that decides an ensemble: settings, base weights, tokenizer, pairs, seed, versions."""
    settings = config.model_dump(mode="json", include=set(DECIDES))
    settings["max_length"] = config.max_length or EARLIER_LENGTH
    pairs = [[[dict(m) for m in p.prompt], p.chosen, p.rejected, p.margin] for p in (*train, *heldout)]
    versions = [metadata.version(n) for n in ("rlhf-plugin-reward", "torch", "transformers")]
    source = resolve_model(base.path)
    weights = weights_digest(source.describe) if source.local else source.path
    model = [base.model_dump(mode="json"), weights, tokenizer_digest(base)]
    text = json.dumps([settings, model, pairs, seed, versions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def tokenizer_digest(base: ModelConfig) -> str:
    """Hash of what turns a conversation into ids: vocabulary, merges, special tokens, chat template."""
    tokenizer = load_tokenizer(base)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    ids = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
    parts = [ids, tokenizer.chat_template, {k: str(v) for k, v in tokenizer.special_tokens_map.items()}]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def save_shared(net: RewardNet, tokenizer: Any, folder: Path, weights: Mapping[str, Any] | None = None) -> None:
    """Write a trunk (adapters folded in) and its stacked heads; without ``weights`` the net's own."""
    weights = net.state_dict() if weights is None else weights
    save_trunk(net, folder / "trunk", weights)
    tokenizer.save_pretrained(folder / "trunk")
    heads = {"heads": weights["head.weight"].detach().contiguous()}
    check_finite(heads, str(folder))
    save_file(heads, str(folder / "heads.safetensors"))


def load_shared(folder: Path, meta: dict[str, Any]) -> tuple[RewardNet, Any]:
    from transformers import AutoModel

    verify_files(folder)
    trunk = AutoModel.from_pretrained(folder / "trunk", use_safetensors=True)
    check_finite(trunk.state_dict(), str(folder / "trunk"))
    weight = load_file(str(folder / "heads.safetensors"))["heads"]
    check_finite({"heads": weight}, str(folder))
    head = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight.data.copy_(weight)
    return RewardNet(trunk, head, frozen=True).eval(), load_tokenizer(ModelConfig(path=str(folder / "trunk")))
