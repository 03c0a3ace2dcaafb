"""Dia (Nari Labs) as a causal language model: ``text <sep> <start> codes <end>``; encoder, decoder and head are
transformers' own. What Dia's sampler forbids has probability 0, what it forces (the other codebooks' ends) has one; its
guidance and its rule on likeliest ends are left out: probabilities are the model's own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DiaConfig, DiaModel, DiaPreTrainedModel

from rlhf_core.data import DatasetError
from rlhf_plugin_tts.code_stream.memory import StreamMemory, Written
from rlhf_plugin_tts.code_stream.modality import Layout, StreamVoice
from rlhf_plugin_tts.code_stream.stream import NEVER, CodeStream, additive, stream_view
from rlhf_plugin_tts.turns import said_and_described


class DiaStreamConfig(DiaConfig):
    """Dia's configuration; the core is told about its stream."""

    def get_text_config(self, *args: Any, **kwargs: Any) -> Any:
        inner: Any = self.decoder_config
        pieces = getattr(self.encoder_config, "vocab_size", 0)
        return stream_view(
            inner.vocab_size, pieces, inner.hidden_size, inner.max_position_embeddings, inner.num_channels
        )


class DiaStream(CodeStream, DiaPreTrainedModel):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """Weights have the names of ``DiaForConditionalGeneration``."""

    config_class = DiaStreamConfig
    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config: DiaStreamConfig) -> None:
        super().__init__(config)
        inner: Any = config.decoder_config
        self.model: Any = DiaModel(config)
        self.logits_dense = nn.Linear(inner.hidden_size, inner.num_channels * inner.vocab_size, bias=False)
        ends = {"begin": inner.bos_token_id, "finish": inner.eos_token_id, "filler": inner.pad_token_id}
        self.lay_out(inner.vocab_size, config.delay_pattern or (), **ends, start=True)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.model.decoder.embeddings.embed

    def embed_text(self, pieces_BM: Tensor) -> Tensor:
        """Nothing: the encoder reads it all, before ``<sep>``."""
        return self.logits_dense.weight.new_zeros(*pieces_BM.shape, self.logits_dense.in_features)

    def embed_frames(self, codes_BFK: Tensor) -> Tensor:
        return self.model.decoder.embeddings(codes_BFK.clamp(max=self.codes - 1))

    def describe(self, pieces_BN: Tensor, known_BN: Tensor) -> Tensor:
        pieces = pieces_BN.clamp(max=self.config.encoder_config.vocab_size - 1)
        return self.model.encoder(input_ids=pieces, attention_mask=known_BN.long()).last_hidden_state

    def run(
        self,
        x_BMH: Tensor,
        places_BM: Tensor,
        about_BNH: Tensor | None,
        seen_BMN: Tensor,
        about_seen_BMN: Tensor,
        memory: StreamMemory | None,
    ) -> Tensor:
        decoder = self.model.decoder
        written = None if memory is None else Written(memory, prompts=about_BNH is not None)
        turned = decoder.rotary_emb(x_BMH, position_ids=places_BM)
        mask, about_mask = additive(seen_BMN, x_BMH), additive(about_seen_BMN, x_BMH)
        about = x_BMH if about_BNH is None else about_BNH  # only its shape is read where its keys are known
        for layer in decoder.layers:
            x_BMH = layer(x_BMH, turned, mask, about, about_mask, written)
        return decoder.norm(x_BMH)

    def of_frames(self, hidden_BFH: Tensor, codes_BFK: Tensor, books: int) -> Tensor:
        """Each head's, of one hidden state, without what Dia never draws."""
        logits = self.logits_dense(hidden_BFH).unflatten(-1, (self.codebooks, self.codes))[:, :, :books].clone()
        logits[..., self.finish + 1 :] = NEVER
        logits[:, :, 1:, self.finish] = NEVER
        return logits

    def dictate(self, position: Tensor, step: Tensor, book: Tensor, ended: Tensor) -> Tensor:
        """The other codebooks' ends besides."""
        out = super().dictate(position, step, book, ended)
        delay = position.new_tensor(self.delays)[book]
        return out.masked_fill((step == ended + delay) & (book > 0), self.finish)


AutoConfig.register("dia", DiaStreamConfig, exist_ok=True)
AutoModelForCausalLM.register(DiaStreamConfig, DiaStream, exist_ok=True)


NAME = "dia"
SPEAKER = "[S1]"


class DiaVoice(StreamVoice):
    """The modality of a folder that ``rlhf tts voice --like dia`` wrote."""

    config_class: ClassVar[Any] = DiaStreamConfig

    @staticmethod
    def laid_out(config: Any) -> Layout:
        inner = config.decoder_config
        return Layout(inner.vocab_size, tuple(config.delay_pattern), inner.eos_token_id)

    def prompt_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """What is said, by the first speaker unless the text says who."""
        said, voice = said_and_described(messages)
        if voice is not None:
            raise DatasetError(
                "Dia takes no description of the voice",
                where=f"prompt {said[:40]!r}",
                why="its encoder reads only the text and the speaker marks [S1] and [S2]",
                fix="leave the system turn out, or --set dataset.descriptions=false",
            )
        return said if re.match(r"\s*\[S\d\]", said) else f"{SPEAKER} {said}"

    def pieces(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
        """All of it is what the encoder reads."""
        (text,) = self.texts
        return [int(i) for i in text(self.prompt_text(messages), add_special_tokens=False).input_ids], []
