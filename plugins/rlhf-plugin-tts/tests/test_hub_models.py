"""Rewards whose weights come from a hub, on small local copies of the same form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.config import ConfigError
from rlhf_core.data import Media
from rlhf_core.models import ModelError
from rlhf_core.rewards import ScoreStatus
from rlhf_plugin_tts.audio import read_clip
from rlhf_plugin_tts.config import SpeakerSimilarityConfig, Utmos22Config, WerConfig
from rlhf_plugin_tts.speaker import SpeakerSimilarity
from rlhf_plugin_tts.utmos import ENCODER_PREFIX, WEIGHT_NORM, Utmos22
from rlhf_plugin_tts.wer import Wer

pytestmark = pytest.mark.slow
Voice = Callable[..., Path]
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 8, 4),
    "conv_stride": (8, 8, 5),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}


@pytest.fixture
def utmos(tmp_path: Path) -> dict[str, Any]:
    """A folder with ``utmos.ckpt`` and one with its encoder; the checkpoint has other encoder weights, old names."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    torch.manual_seed(0)
    Wav2Vec2Model(Wav2Vec2Config(**TINY)).save_pretrained(tmp_path / "encoder")
    tuned = Wav2Vec2Model(Wav2Vec2Config(**TINY)).state_dict()
    old = {v: k for k, v in WEIGHT_NORM.items()}
    names = {n: next((n.replace(new, o) for new, o in old.items() if n.endswith(new)), n) for n in tuned}
    decoder = torch.nn.LSTM(16 + 4 + 4, 8, batch_first=True, bidirectional=True)
    head = torch.nn.Sequential(torch.nn.Linear(16, 12), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(12, 1))
    state = {
        **{ENCODER_PREFIX + names[n]: value for n, value in tuned.items()},
        "domain_embedding.weight": torch.randn(3, 4),
        "judge_embedding.weight": torch.randn(300, 4),
        **{f"decoder.{n}": value for n, value in decoder.state_dict().items()},
        **{f"classifier.{n}": value for n, value in head.state_dict().items()},
    }
    (tmp_path / "utmos").mkdir()
    torch.save(state, tmp_path / "utmos" / "utmos.ckpt")
    return {"path": str(tmp_path / "utmos"), "encoder": str(tmp_path / "encoder"), "tuned": tuned, "state": state}


def test_utmos_scores_with_the_weights_of_its_checkpoint(utmos: dict[str, Any], voice: Voice, spoken: Any) -> None:
    reward = Utmos22(Utmos22Config(checkpoint=utmos["path"], encoder=utmos["encoder"]))
    for name, value in reward.encoder.state_dict().items():
        assert torch.equal(value, utmos["tuned"][name]), name
    (score,) = reward.score([spoken(voice("a.wav"))])
    (other,) = Utmos22(Utmos22Config(checkpoint=utmos["path"], encoder=utmos["encoder"], judge=7)).score(
        [spoken(voice("a.wav"))]
    )
    assert score.ok
    assert score.value != other.value
    frames = torch.randn(1, 5, 16)
    weights = utmos["state"]["domain_embedding.weight"][0], utmos["state"]["judge_embedding.weight"][288]
    joined = torch.cat([frames, *(w.expand(1, 5, 4) for w in weights)], dim=2)
    expected = reward.head.classifier(reward.head.decoder(joined)[0]).mean() * 2 + 3
    assert float(reward.head(frames, 0, 288)) == pytest.approx(float(expected))


def test_a_missing_or_foreign_checkpoint_is_named(utmos: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(ModelError, match=r"holds no utmos\.ckpt"):
        Utmos22(Utmos22Config(checkpoint=str(tmp_path / "none"), encoder=utmos["encoder"]))
    torch.save({"a": torch.zeros(1)}, tmp_path / "none" / "utmos.ckpt")
    with pytest.raises(ModelError, match="does not hold UTMOS22's head"):
        Utmos22(Utmos22Config(checkpoint=str(tmp_path / "none"), encoder=utmos["encoder"]))


def test_the_same_voice_is_most_similar(voice: Voice, spoken: Any, tmp_path: Path) -> None:
    from transformers import WavLMConfig, WavLMForXVector

    torch.manual_seed(0)
    tiny = {**TINY, "tdnn_dim": (16, 16), "tdnn_kernel": (3, 1), "tdnn_dilation": (1, 1), "xvector_output_dim": 8}
    WavLMForXVector(WavLMConfig(**tiny)).save_pretrained(tmp_path / "wavlm")
    file = voice("a.wav", seconds=1.0)
    reward = SpeakerSimilarity(SpeakerSimilarityConfig(model=str(tmp_path / "wavlm"), reference=str(file)))
    same, other = reward.score([spoken(file), spoken(voice("bb.wav", hz=320, noise=2.0, seconds=1.0))])
    assert same.value == pytest.approx(1.0, abs=1e-5)
    assert other.value < same.value - 1e-4
    of_prompt = SpeakerSimilarity(SpeakerSimilarityConfig(model=str(tmp_path / "wavlm")))
    with_voice, without = of_prompt.score([spoken(file, media=(Media("audio", path=str(file)),)), spoken(file)])
    assert with_voice.value == pytest.approx(1.0, abs=1e-5)
    assert without.status is ScoreStatus.MISSING
    with pytest.raises(ConfigError, match="reference"):
        SpeakerSimilarity(SpeakerSimilarityConfig(model=str(tmp_path / "wavlm"), reference=str(tmp_path / "no.wav")))


def test_whisper_transcribes_through_transformers(voice: Voice, spoken: Any, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<start>", "<end>", "a", "nice", "day"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "whisper"
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>").save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=8).save_pretrained(folder)
    config = WhisperConfig(
        vocab_size=6, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_target_positions=230, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None, suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        model.proj_out.weight.zero_()
        model.model.decoder.layer_norm.weight.zero_()
        model.model.decoder.layer_norm.bias.fill_(1.0)
        model.proj_out.weight[4].fill_(1.0)  # whatever the sound, it transcribes "nice"
    model.generation_config.max_new_tokens = 3
    model.save_pretrained(folder)
    reward = Wer(WerConfig(recogniser="whisper", whisper=str(folder)))
    (score,) = reward.score([spoken(voice("a.wav"), "nice day")])
    transcribe = reward.recogniser.transcribe
    assert set(transcribe(read_clip(voice("a.wav"))).split()) == {"nice"}
    assert score.value == -1.0
    assert score.parts["wer"] > 1
    with pytest.raises(ModelError, match="not a Whisper checkpoint"):
        Wer(WerConfig(recogniser="whisper", whisper=str(tmp_path / "none")))
    assert json.loads((folder / "config.json").read_text())["model_type"] == "whisper"
