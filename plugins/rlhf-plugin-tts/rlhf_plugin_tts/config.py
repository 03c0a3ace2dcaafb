"""What the entry points of the rewards name; importing this imports no audio library and no torch."""

from __future__ import annotations

import importlib.util
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError
from rlhf_core.models import ModelPath

NATURAL: Mapping[str, tuple[float, float, float]] = {
    name: (low, high, scale)
    for name, (low, high, scale) in tomllib.loads(Path(__file__).with_name("natural.toml").read_text()).items()
}
"""Measure -> lowest and highest value of clean read speech, and how far beyond counts 1."""
FURTHER = ("pitch_variance", "spectral_centroid", "spectral_flatness")
"""Measures that no default range says anything about."""


class SpeechRewardConfig(ComponentConfig):
    """What every reward of one clip can be told. A clip that cannot be scored has status ``missing`` and a reason."""

    needs: ClassVar[Mapping[str, str]] = {}
    """Module that must be installed -> how to install it."""
    max_seconds: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """A longer clip has no score."""

    def preflight(self, ctx: BuildContext) -> None:
        del ctx
        check_installed(self.name, self.needs)


def check_installed(name: str, needs: Mapping[str, str]) -> None:
    """Refuse a reward whose packages are missing; nothing is imported."""
    for module, fix in needs.items():
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"reward '{name}' needs the package '{module}', which is not installed", fix=fix)


class AcousticProxyConfig(SpeechRewardConfig):
    """How far a clip is from clean speech: 0 where every measure is as in recorded speech, else below. What is not
    speech (tones, noise) has the lowest value. The speech page says which damage it detects."""

    name: str = "acoustic_proxy"
    component: ClassVar[str] = "rlhf_plugin_tts.acoustic:AcousticProxy"
    weights: dict[str, float] = Field(default_factory=lambda: dict.fromkeys(NATURAL, 1.0), min_length=1)
    """Measure -> weight in the mean, alike by default; measures that are not named count nothing."""
    natural: dict[str, tuple[float, float, float]] = Field(default_factory=dict)
    """Measure -> lowest and highest natural value, and how far outside counts 1, where they are not the defaults."""
    limit: float = Field(default=4.0, gt=0, allow_inf_nan=False)
    """The most that one measure counts."""
    speech_only: bool = True
    """Whether what is not speech has the lowest value; else it is measured as speech is."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = {*NATURAL, *FURTHER}
        if unknown := sorted({*self.weights, *self.natural} - known):
            raise ConfigError(f"there is no acoustic measure '{unknown[0]}'", fix="one of " + ", ".join(sorted(known)))
        for name, (low, high, scale) in self.natural.items():
            if not (-math.inf < low <= high < math.inf and 0 < scale < math.inf):
                raise ConfigError(f"the natural range of '{name}' is none", fix="give [low, high, scale], scale > 0")
        for name, weight in self.weights.items():
            if not 0 <= weight < math.inf:
                raise ConfigError(f"the weight of '{name}' is not a finite number from 0", fix="0 leaves it out")
            if name not in {*NATURAL, *self.natural}:
                raise ConfigError(f"'{name}' has no natural range", fix=f"natural.{name}=[low, high, scale]")
        if not any(self.weights.values()):
            raise ConfigError("all weights are 0, so that every clip would have the same score", fix="give one another")
        return self


class DnsmosConfig(SpeechRewardConfig):
    """DNSMOS: mean opinion score of noisy speech, predicted by a network (Reddy et al. 2021, 2022).

    The weights come with the package ``speechmos``. A clip is repeated up to 9.01 s and scored once.
    """

    name: str = "dnsmos"
    component: ClassVar[str] = "rlhf_plugin_tts.dnsmos:Dnsmos"
    needs: ClassVar[Mapping[str, str]] = {
        "onnxruntime": "pip install onnxruntime",
        "speechmos": "pip install speechmos",
    }
    value: Literal["p808", "ovrl", "sig", "bak"] = "p808"
    """Which score is the reward: P.808 overall, or P.835 overall, speech, background; all are parts."""
    only_value: bool = False
    """Leave out the network that the reward is not from, and its parts: P.808 alone takes a fifth of the time."""
    hop_seconds: float = Field(default=1.0, gt=0)
    """Between the windows of a clip that is longer than one."""
    threads: int = Field(default=1, ge=1)


class DistillMosConfig(SpeechRewardConfig):
    """DistillMOS: quality of a clip by a distilled self-supervised model (Stahl and Gamper 2025).

    The weights come with the package ``distillmos``; nothing else of it is used.
    """

    name: str = "distillmos"
    component: ClassVar[str] = "rlhf_plugin_tts.distillmos:DistillMos"
    needs: ClassVar[Mapping[str, str]] = {
        "distillmos": 'pip install "rlhf-plugin-tts[distillmos]"; without torchaudio: pip install --no-deps distillmos'
    }


class Utmos22Config(SpeechRewardConfig):
    """UTMOS22 strong learner: mean opinion score of synthetic speech (Saeki et al. 2022)."""

    name: str = "utmos22"
    component: ClassVar[str] = "rlhf_plugin_tts.utmos:Utmos22"
    checkpoint: str = "chaanks/UTMOS"
    """Hub id or folder that holds ``utmos.ckpt``."""
    encoder: str = "chaanks/wav2vec2-small"
    """Hub id or folder of its wav2vec 2.0 in Hugging Face form."""
    judge: int = Field(default=288, ge=0)
    domain: int = Field(default=0, ge=0)


class WerConfig(SpeechRewardConfig):
    """Negative word error rate of a recogniser's transcript against the prompt's text (or its ``answer``)."""

    name: str = "wer"
    component: ClassVar[str] = "rlhf_plugin_tts.wer:Wer"
    needs: ClassVar[Mapping[str, str]] = {"jiwer": "pip install jiwer"}
    recogniser: Literal["pocketsphinx", "whisper"] = "pocketsphinx"
    """``pocketsphinx``: American English, offline, weak. ``whisper``: any Whisper checkpoint through transformers."""
    whisper: str | None = None
    """Its folder or hub id, for example openai/whisper-base.en."""
    cap: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """A higher error rate counts as this one; the part ``wer`` says what it was."""

    def preflight(self, ctx: BuildContext) -> None:
        super().preflight(ctx)
        if self.recogniser == "pocketsphinx":
            check_installed(self.name, {"pocketsphinx": "pip install pocketsphinx"})
        elif self.whisper is None:
            raise ConfigError("reward 'wer' with whisper needs its checkpoint", fix="whisper=openai/whisper-base.en")


class PhonesConfig(ComponentConfig):
    """Negative phone error rate of the phones that a completion of ``pocket-voice`` names, against those of its text.

    Reads the tokens and ignores the sound: ``wer``, of a recogniser's transcript, stays an independent measure.
    """

    name: str = "phones"
    component: ClassVar[str] = "rlhf_plugin_tts.phones:Phones"


class DurationConfig(SpeechRewardConfig):
    """How far a clip's duration is from what its text takes: ``-|ln(seconds / expected)|``, 0 at best."""

    name: str = "duration"
    component: ClassVar[str] = "rlhf_plugin_tts.duration:Duration"
    characters_per_second: float = Field(default=14.0, gt=0)
    """Letters and digits of the text per second of speech."""
    pause_seconds: float = Field(default=0.3, ge=0)
    """Added for the clip's beginning and end."""


class SpeakerSimilarityConfig(SpeechRewardConfig):
    """Cosine similarity of speaker embeddings with a reference clip (x-vectors of WavLM and the like)."""

    name: str = "speaker_similarity"
    component: ClassVar[str] = "rlhf_plugin_tts.speaker:SpeakerSimilarity"
    model: str = "microsoft/wavlm-base-plus-sv"
    """Hub id or folder that ``AutoModelForAudioXVector`` loads."""
    reference: str | None = None
    """The speaker's clip, a file; None takes the sound that belongs to the prompt."""


class AudioModelConfig(SpeechRewardConfig):
    """A trained reward model on acoustic features; ``rlhf tts train-reward`` writes its folder."""

    name: str = "audio_feature_model"
    component: ClassVar[str] = "rlhf_plugin_tts.trained:load_feature_model"
    path: ModelPath
    also: tuple[ModelPath, ...] = ()
    """More such folders: an ensemble, whose disagreement lowers the score."""
    uncertainty_penalty: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """lambda in ``mean - lambda * std`` over the members (population std), where there are several."""

    def preflight(self, ctx: BuildContext) -> None:
        super().preflight(ctx)
        from rlhf_plugin_tts.store import check_folder

        for folder in (self.path, *self.also):
            check_folder(folder, self.name)


class AudioEncoderConfig(AudioModelConfig):
    """A trained reward model on a frozen wav2vec 2.0 (or HuBERT, WavLM); ``rlhf tts train-reward`` writes it."""

    name: str = "audio_encoder_model"
    component: ClassVar[str] = "rlhf_plugin_tts.trained:load_encoder_model"
