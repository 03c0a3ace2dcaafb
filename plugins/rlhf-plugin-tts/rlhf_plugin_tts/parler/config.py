"""The configuration of Parler-TTS, as its own package writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from rlhf_plugin_tts.code_stream.stream import MARKS, stream_view

DEFAULTS: Mapping[str, Any] = json.loads(Path(__file__).with_name("decoder_defaults.json").read_text())


class ParlerDecoderConfig(PretrainedConfig):
    """Of the decoder; the defaults are those of the package."""

    model_type = "parler_tts_decoder"

    def __init__(self, **kwargs: Any) -> None:
        for name, default in DEFAULTS.items():
            setattr(self, name, kwargs.pop(name, default))
        self.num_key_value_heads: int = self.num_key_value_heads or self.num_attention_heads
        self.num_cross_attention_key_value_heads: int = (
            self.num_cross_attention_key_value_heads or self.num_key_value_heads
        )
        ids: dict[str, Any] = {"pad_token_id": 2048, "bos_token_id": 2049, "eos_token_id": 2048}
        super().__init__(**(ids | kwargs))


class ParlerConfig(PretrainedConfig):
    """Of the whole model; and what the core reads of it, for the stream of tokens."""

    model_type = "parler_tts"

    def __init__(
        self,
        vocab_size: int = 1024,
        text_encoder: Any = None,
        audio_encoder: Any = None,
        decoder: Any = None,
        prompt_cross_attention: bool = False,
        learned_codebooks: str = "all",
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.prompt_cross_attention = vocab_size, prompt_cross_attention
        self.learned_codebooks = learned_codebooks
        text = dict(text_encoder) if isinstance(text_encoder, dict) else text_encoder
        if isinstance(text, dict) or text is None:
            text = dict(text or {"model_type": "t5"})
            text = AutoConfig.for_model(text.pop("model_type"), **text)
        self.text_encoder: Any = text
        self.audio_encoder: Any = audio_encoder or {}
        settings = decoder or {}
        self.decoder: Any = ParlerDecoderConfig(**settings) if isinstance(settings, dict) else settings
        kwargs["is_encoder_decoder"] = True
        super().__init__(**kwargs)

    def get_text_config(self, decoder: Any = None, encoder: Any = None) -> Any:
        inner = self.decoder
        pieces = max(self.vocab_size, getattr(self.text_encoder, "vocab_size", 0))
        return stream_view(
            inner.vocab_size, pieces, inner.hidden_size, inner.max_position_embeddings, inner.num_codebooks
        )

    @property
    def first_piece(self) -> int:
        """Id of the first piece of a text in the stream."""
        return self.decoder.vocab_size + 1 + len(MARKS)
