"""A linear head on the frozen pocket trunk, trained on preference pairs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rlhf_core.config import Registry
from rlhf_core.data import whole_folder
from rlhf_core.models import LoadedModel
from rlhf_core.training import OptimizerSettings
from rlhf_plugin_datagen.outside import open_datasets
from rlhf_plugin_reward.config import EnsembleConfig
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_reward.members import fit
from rlhf_plugin_reward.net import fresh_net, save_classifier
from rlhf_plugin_reward.pairs import encode_pairs


def linear_head(folder: Path, pairs: int, seed: int, policy: LoadedModel) -> Path:
    """Train it unless it is there; the folder that ``bradley_terry`` loads."""
    if folder.is_dir():
        return folder
    rows = open_datasets(Registry(), "pocket/assistant", limit=pairs).pairs("train")
    items = encode_pairs(rows, Encoder(policy.tokenizer, policy.context), Counter())
    optimizer = OptimizerSettings(learning_rate=1e-2, schedule="cosine")
    config = EnsembleConfig(optimizer=optimizer, batch_size=64, micro_batch_size=64, epochs=8)
    net = fit(config, fresh_net(policy, 1, seed, "frozen"), items, seed, "cpu")
    with whole_folder(folder) as aside:
        save_classifier(net, policy.tokenizer, aside)
    return folder
