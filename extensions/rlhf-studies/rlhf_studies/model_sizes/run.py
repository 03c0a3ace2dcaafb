"""Models of several sizes, pretrained on one stream of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_core.data import whole_folder
from rlhf_core.models import ModelConfig, load_tokenizer
from rlhf_plugin_pocket.build import fresh_llama, mixed, save, train
from rlhf_studies.model_sizes.config import WIDTHS, ModelSizesConfig
from rlhf_study.ablation.run import Ablation

HEAD = 32
"""Width of an attention head."""


class ModelSizes(Ablation[ModelSizesConfig]):
    def files(self, seed: int, folder: Path) -> dict[str, Path]:
        return {size: self.pretrained(width, seed, folder / "pretrained" / size) for size, width in WIDTHS.items()}

    def pretrained(self, width: int, seed: int, folder: Path) -> Path:
        if not folder.is_dir():
            tokenizer: Any = load_tokenizer(ModelConfig())
            steps = self.config.build_steps
            begin = tokenizer.bos_token_id
            model = fresh_llama(tokenizer, seed, width, round(2.7 * width), width // HEAD, 256, bos_token_id=begin)
            train(model, mixed(tokenizer, seed, steps), steps, warm_up=min(100, steps))
            with whole_folder(folder) as aside:
                save(model, tokenizer, aside)
        return folder
