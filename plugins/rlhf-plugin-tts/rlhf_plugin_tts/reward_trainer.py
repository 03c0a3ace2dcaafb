"""What `rlhf train --algo audio_reward_model` is told; importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.training import OfflineTrainerConfig, OptimizerSettings


class AudioRewardModelConfig(OfflineTrainerConfig):
    """Train a reward model on pairs of clips; no clip is both trained on and held out.

    Rows have ``chosen_audio`` and ``rejected_audio``. The final model is a folder for the rewards
    ``audio_feature_model`` and ``audio_encoder_model``.
    """

    name: str = "audio_reward_model"
    component: ClassVar[str] = "rlhf_plugin_tts.reward_task:build_trainer"
    companions: ClassVar[Mapping[str, Any]] = {"loss": "bradley_terry"}
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=3e-3, warmup_steps=0, schedule="cosine")
    epochs: float = Field(default=20, gt=0)
    """Passes over the pairs."""
    batch_size: int = Field(default=16, ge=1)
    micro_batch_size: int = Field(default=16, ge=1)
    encoder: str | None = None
    """Encode clips with this frozen wav2vec 2.0, HuBERT or WavLM (folder or hub id); None takes acoustic features."""
    hidden: int = Field(default=32, ge=0)
    """Units of the head's hidden layer; 0 is a linear head."""
    heldout_share: float = Field(default=0.2, gt=0, lt=1)
    """Of the pairs, held out so that no clip is on both sides, where the dataset names no held-out file."""
    precision: Literal["fp32"] = "fp32"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Features and head are computed in float32."""
    random_labels: bool = False
    """A control: which clip of a training pair is called chosen is drawn by chance."""

    def preflight(self, ctx: BuildContext) -> None:
        """Read every pair and look for its files."""
        super().preflight(ctx)
        self.splits(ctx)

    def splits(self, ctx: BuildContext) -> tuple[Any, Any]:
        """(training pairs, held-out pairs) of the run's dataset."""
        from rlhf_plugin_tts.rows import disjoint_split, read_audio_pairs, refuse_shared

        settings = ctx.config.dataset
        sources = [s.source for s in (*settings.sources, *([settings.heldout] if settings.heldout else []))]
        paths = [getattr(source, "path", None) for source in sources]
        if len(settings.sources) != 1 or not all(isinstance(p, str) for p in paths):
            raise ConfigError(
                f"'{self.name}' learns from one file of pairs of clips",
                why="its dataset is " + ", ".join(str(s.name) for s in sources),
                fix="--dataset pairs.jsonl with chosen_audio and rejected_audio",
            )
        train = read_audio_pairs(str(paths[0]))
        inner = getattr(sources[0], "heldout_path", None)
        other = paths[1] if len(paths) > 1 else inner
        if other is None:
            return disjoint_split(train, self.heldout_share, ctx.seed)
        heldout = read_audio_pairs(str(other))
        refuse_shared(train, heldout)
        return train, heldout
