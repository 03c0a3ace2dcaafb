"""CSM (Sesame) as a causal language model: ``<sep> text <start> codes <end>``. The backbone predicts a frame's first
code, the depth decoder the others, all transformers' own, so that the sum over a clip's tokens is the model's own loss.
A frame of end codes alone ends the clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, CsmBackboneModel, CsmConfig, CsmDepthDecoderForCausalLM

from rlhf_core.data import DatasetError
from rlhf_plugin_tts.code_stream.modality import Layout, StreamVoice
from rlhf_plugin_tts.turns import said_and_described

from transformers import CsmPreTrainedModel  # isort: skip
from rlhf_plugin_tts.code_stream.memory import StreamMemory, Written
from rlhf_plugin_tts.code_stream.stream import CodeStream, additive, stream_view


class CsmStreamConfig(CsmConfig):
    """CSM's configuration; the core is told about its stream."""

    def get_text_config(self, *args: Any, **kwargs: Any) -> Any:
        books, steps = int(self.num_codebooks or 1), self.max_position_embeddings
        return stream_view(self.vocab_size, self.text_vocab_size, self.hidden_size, steps, books)


class CsmStream(CodeStream, CsmPreTrainedModel):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """Weights have the names of ``CsmForConditionalGeneration``; its codec is left out."""

    config_class = CsmStreamConfig
    _supports_flash_attn = False
    _keys_to_ignore_on_load_unexpected = [r"^codec_model\."]  # noqa: RUF012
    _tied_weights_keys = {  # noqa: RUF012
        "backbone_model.embed_tokens.embed_audio_tokens.weight": "depth_decoder.model.embed_tokens.weight"
    }

    def __init__(self, config: CsmStreamConfig) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.embed_text_tokens = nn.Embedding(config.text_vocab_size, config.hidden_size)
        self.backbone_model: Any = CsmBackboneModel._from_config(config)  # as transformers builds it
        depth: Any = config.depth_decoder_config
        self.depth_decoder: Any = CsmDepthDecoderForCausalLM._from_config(depth)
        books, end = int(config.num_codebooks or 1), config.codebook_eos_token_id
        self.lay_out(config.vocab_size, [0] * books, begin=-1, finish=int(end), filler=-1, start=False)  # pyright: ignore[reportArgumentType]
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.embed_text_tokens

    def embed_text(self, pieces_BM: Tensor) -> Tensor:
        return self.embed_text_tokens(pieces_BM.clamp(max=self.config.text_vocab_size - 1))

    def embed_frames(self, codes_BFK: Tensor) -> Tensor:
        """The sum over codebooks."""
        return self.backbone_model.embed_tokens(codes_BFK.clamp(max=self.codes - 1))

    def run(
        self,
        x_BMH: Tensor,
        places_BM: Tensor,
        about_BNH: Tensor | None,
        seen_BMN: Tensor,
        about_seen_BMN: Tensor,
        memory: StreamMemory | None,
    ) -> Tensor:
        backbone = self.backbone_model
        written = None if memory is None else Written(memory, prompts=memory.state is None)
        turned, mask = backbone.rotary_emb(x_BMH, position_ids=places_BM), additive(seen_BMN, x_BMH)
        for layer in backbone.layers:
            x_BMH = layer(x_BMH, mask, None, written, position_embeddings=turned)
        return backbone.norm(x_BMH)

    def of_frames(self, hidden_BFH: Tensor, codes_BFK: Tensor, books: int) -> Tensor:
        """The backbone's head, and the depth decoder after the codes before."""
        first_BF1V = self.lm_head(hidden_BFH)[:, :, None]
        if books == 1:
            return first_BF1V
        depth, frames = self.depth_decoder, hidden_BFH.shape[:2]
        codes = codes_BFK.flatten(0, 1)[:, : books - 1].clamp(max=self.codes - 1)
        offsets = torch.arange(books - 1, device=codes.device) * self.codes
        embedded = depth.model.embed_tokens(codes + offsets)
        fed = torch.cat([hidden_BFH.flatten(0, 1)[:, None].to(embedded.dtype), embedded], 1)
        all_NK = torch.ones(fed.shape[:2], dtype=torch.long, device=fed.device)  # without it transformers 5.23 fails
        logits = depth(inputs_embeds=fed, attention_mask=all_NK, use_cache=False).logits
        return torch.cat([first_BF1V, logits.unflatten(0, frames)], 2)

    def ends(self, codes_BK: Tensor, book_B: Tensor) -> Tensor:
        """With a frame of end codes alone."""
        return (book_B == self.codebooks - 1) & (codes_BK == self.finish).all(1)

    def dictate(self, position: Tensor, step: Tensor, book: Tensor, ended: Tensor) -> Tensor:
        """The end after the last frame; there are no delays."""
        return torch.full_like(position, -1).masked_fill((step > ended) & (book == 0), self.end)


AutoConfig.register("csm", CsmStreamConfig, exist_ok=True)
AutoModelForCausalLM.register(CsmStreamConfig, CsmStream, exist_ok=True)


NAME = "csm"
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"


class CsmVoice(StreamVoice):
    """The modality of a folder that ``rlhf tts voice --like csm`` wrote."""

    config_class: ClassVar[Any] = CsmStreamConfig

    @staticmethod
    def laid_out(config: Any) -> Layout:
        return Layout(config.vocab_size, (0,) * config.num_codebooks, config.codebook_eos_token_id, whole_end=True)

    def prompt_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """As CSM's chat template writes a turn without sound: ``[speaker]text``."""
        said, voice = said_and_described(messages)
        speaker = str(self.settings.get("voice") or "0") if voice is None else voice.strip()
        if not speaker.isdecimal():
            raise DatasetError(
                f"{speaker[:40]!r} is not a speaker of CSM",
                where=f"prompt {said[:40]!r}",
                why="it knows speakers by number and takes no description",
                fix="a system turn such as 0, or none (--set dataset.descriptions=false)",
            )
        (text,) = self.texts
        if mark := next((m for m in text.all_special_tokens if m in said), None):
            raise DatasetError(
                f"a prompt holds {mark!r}, the name of a token", where=f"prompt {said[:40]!r}", fix="other words"
            )
        return f"{BEGIN}[{speaker}]{said}{END}"

    def pieces(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
        """All of it is what the backbone reads before the codes."""
        (text,) = self.texts
        return [], [int(i) for i in text(self.prompt_text(messages), add_special_tokens=False).input_ids]
