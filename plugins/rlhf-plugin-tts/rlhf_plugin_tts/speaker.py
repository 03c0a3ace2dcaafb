"""The reward for keeping a voice: cosine similarity of speaker embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from rlhf_core.config import ConfigError
from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import Clip, ClipError, read_clip
from rlhf_plugin_tts.clip_reward import ClipReward, check_clip
from rlhf_plugin_tts.config import SpeakerSimilarityConfig
from rlhf_plugin_tts.utmos import load_frozen

RATE = 16000


class SpeakerSimilarity(ClipReward):
    """Cosine of the angle between two x-vectors, -1 to 1."""

    def __init__(self, config: SpeakerSimilarityConfig) -> None:
        super().__init__(config.max_seconds)
        fix = "reward.model=FOLDER, or a hub id such as microsoft/wavlm-base-plus-sv"
        self._model = load_frozen("AutoModelForAudioXVector", config.model, "a speaker model", fix)
        self.reference = config.reference
        self._of_file = lru_cache(256)(self._embed_file)
        if config.reference is not None:
            try:
                self._of_file(config.reference)
            except ClipError as error:
                raise ConfigError("the reference of 'speaker_similarity' cannot be used", why=str(error)) from error

    @torch.inference_mode()
    def measure(self, clip: Clip, sample: Sample) -> tuple[float, Mapping[str, float]]:
        file = self.reference or next((m.path for m in sample.prompt.media if m.kind == "audio" and m.path), None)
        if file is None:
            raise ClipError("there is no clip of the speaker: neither reward.reference nor a sound of the prompt")
        return float(torch.cosine_similarity(self._embed(clip), self._of_file(file), dim=0)), {}

    def _embed_file(self, file: str) -> Tensor:
        clip = read_clip(Path(file), self.max_seconds)
        check_clip(clip)
        return self._embed(clip)

    @torch.inference_mode()
    def _embed(self, clip: Clip) -> Tensor:
        samples = clip.at(RATE).samples
        scaled = (samples - samples.mean()) / (samples.std() + 1e-7)
        return self._model(torch.from_numpy(scaled)[None]).embeddings[0]
