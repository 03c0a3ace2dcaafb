"""Parler-TTS as a causal language model: ``description <sep> text <start> codes <end>``, a head per codebook. What the
delay pattern dictates has probability one, so the sum over a clip's tokens is the package's cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTextEncoding, PreTrainedModel

from rlhf_plugin_tts.code_stream.memory import StreamMemory
from rlhf_plugin_tts.code_stream.stream import CodeStream
from rlhf_plugin_tts.parler.config import ParlerConfig
from rlhf_plugin_tts.parler.layers import Decoder, Positions


class ParlerStream(CodeStream, PreTrainedModel):
    """Weights have the names of ``ParlerTTSForConditionalGeneration``; its codec is left out."""

    config_class = ParlerConfig
    main_input_name = "input_ids"
    _keys_to_ignore_on_load_unexpected = [r"^audio_encoder\.", r"rotary_emb"]  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config: ParlerConfig) -> None:
        super().__init__(config)
        inner = config.decoder
        if config.prompt_cross_attention:
            raise ValueError("Parler-TTS with prompt_cross_attention cannot be run here")
        if inner.num_key_value_heads != inner.num_cross_attention_key_value_heads:
            raise ValueError("Parler-TTS whose two attentions have different numbers of key heads cannot be run here")
        self.text_encoder: Any = AutoModelForTextEncoding.from_config(config.text_encoder)
        self.text_encoder.requires_grad_(False)
        self.decoder = nn.ModuleDict({"model": nn.ModuleDict({"decoder": Decoder(inner)})})
        heads = inner.num_codebooks
        if inner.use_fused_lm_heads:
            self.decoder["lm_heads"] = nn.Linear(inner.hidden_size, inner.vocab_size * heads, bias=False)
        else:
            self.decoder["lm_heads"] = nn.ModuleList(
                [nn.Linear(inner.hidden_size, inner.vocab_size, bias=False) for _ in range(heads)]
            )
        if config.text_encoder.hidden_size != inner.hidden_size:
            self.enc_to_dec_proj = nn.Linear(config.text_encoder.hidden_size, inner.hidden_size)
        self.embed_prompts = nn.Embedding(config.vocab_size, inner.hidden_size)
        ends = {"begin": inner.bos_token_id, "finish": inner.eos_token_id, "filler": inner.eos_token_id}
        self.lay_out(inner.vocab_size, range(heads), **ends, start=True)
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.decoder.initializer_factor)
        elif isinstance(module, Positions):
            with torch.no_grad():
                module.weights.copy_(Positions(self.config.decoder).weights)

    @property
    def layers(self) -> Any:
        model: Any = self.decoder["model"]
        return model["decoder"]

    def get_input_embeddings(self) -> Any:
        return self.embed_prompts

    def embed_text(self, pieces_BM: Tensor) -> Tensor:
        return self.embed_prompts(pieces_BM.clamp(max=self.config.vocab_size - 1))

    def embed_frames(self, codes_BFK: Tensor) -> Tensor:
        embedded: Any = sum(table(codes_BFK[..., k]) for k, table in enumerate(self.layers.embed_tokens))
        return embedded

    def describe(self, pieces_BN: Tensor, known_BN: Tensor) -> Tensor:
        """The description as the decoder's second attention reads it."""
        pieces, known = pieces_BN.clamp(max=self.config.text_encoder.vocab_size - 1), known_BN.long()
        out = self.text_encoder(input_ids=pieces, attention_mask=known).last_hidden_state
        out = self.enc_to_dec_proj(out) if hasattr(self, "enc_to_dec_proj") else out
        return out * known[..., None]

    def run(
        self,
        x_BMH: Tensor,
        places_BM: Tensor,
        about_BNH: Tensor | None,
        seen_BMN: Tensor,
        about_seen_BMN: Tensor,
        memory: StreamMemory | None,
    ) -> Tensor:

        def store(layer: int, key: Tensor, value: Tensor, *about: Tensor) -> Any:
            if memory is None:
                return key, value, *about
            if about_BNH is None:
                return *memory.put(layer, key, value), *memory.about[layer]
            memory.fill(layer, key, value)
            memory.fill(layer, *about, about=True)
            return key, value, *about

        return self.layers.run(x_BMH, places_BM, about_BNH, seen_BMN, about_seen_BMN, store)

    def of_frames(self, hidden_BFH: Tensor, codes_BFK: Tensor, books: int) -> Tensor:
        heads: Any = self.decoder["lm_heads"]
        if isinstance(heads, nn.Linear):
            return heads(hidden_BFH).unflatten(-1, (self.codebooks, self.codes))[:, :, :books]
        return torch.stack([head(hidden_BFH) for head in heads[:books]], -2)


AutoConfig.register("parler_tts", ParlerConfig, exist_ok=True)
AutoModelForCausalLM.register(ParlerConfig, ParlerStream, exist_ok=True)
