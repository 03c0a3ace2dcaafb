"""A causal language model of one stream of tokens over a decoder that predicts several codes a step:
``description <sep> text <start> codes <end>``.

Codes lie step after step, within a step codebook after codebook; codebook k of step s is the code of frame
s - delay[k]. The decoder runs once a step. What the delays dictate has probability one, all else what the model gives
it. A subclass says how texts and frames are embedded, what the decoder makes of them, and the codes' logits.

Suffixes: ``_B`` rows, ``_L`` positions of the stream, ``_M`` positions of the decoder, ``_N`` of the description,
``_F`` frames (steps), ``_K`` codebooks, ``_H`` hidden, ``_V`` codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from rlhf_plugin_tts.code_stream.memory import RowState, StreamMemory

NEVER = -1e4
"""A logit whose probability is 0 in every number type, and that leaves an entropy finite."""
FAR = 1 << 30
"""A step that no clip reaches."""
MARKS = ("<end>", "<sep>", "<start>", "<pad>")
"""Tokens of the stream after the codes; the pieces of texts follow."""


def stream_view(codes: int, pieces: int, hidden: int, steps: int, codebooks: int) -> PretrainedConfig:
    """What the core reads of a model's configuration, for its stream: one layer of a cache holds all."""
    view = PretrainedConfig()
    sizes = {"vocab_size": codes + 1 + len(MARKS) + pieces, "hidden_size": hidden, "num_hidden_layers": 1}
    for name, value in {**sizes, "max_position_embeddings": steps * codebooks}.items():
        setattr(view, name, value)
    return view


class CodeStream:
    """What a model's class inherits beside transformers' own; :meth:`lay_out` comes first in its constructor."""

    config: Any
    codebooks: int
    """Codes of a step."""
    codes: int
    """Ids that a codebook's head predicts; the id after them may be what its beginning is fed."""
    delays: tuple[int, ...]
    """Steps by which each codebook is late."""
    feeds_start: bool
    """Whether the decoder reads ``<start>``; else the last piece of the text predicts the first code."""

    def lay_out(self, codes: int, delays: Sequence[int], *, begin: int, finish: int, filler: int, start: bool) -> None:
        """``begin`` is a codebook's code before its first frame, ``finish`` ends the first, ``filler`` follows."""
        self.codes, self.delays, self.codebooks, self.feeds_start = codes, tuple(delays), len(delays), start
        self.begin, self.finish, self.filler = begin, finish, filler
        self.end, self.sep, self.start, _ = range(codes + 1, codes + 1 + len(MARKS))
        self.first_piece = codes + 1 + len(MARKS)

    def embed_text(self, pieces_BM: Tensor) -> Tensor:
        """What the decoder is fed for pieces of the text, ``[B, M, H]``."""
        raise NotImplementedError

    def embed_frames(self, codes_BFK: Tensor) -> Tensor:
        """What the decoder is fed for steps, ``[B, F, H]``."""
        raise NotImplementedError

    def describe(self, pieces_BN: Tensor, known_BN: Tensor) -> Tensor | None:
        """The description as the decoder reads it; None if it reads none."""
        return None

    def run(
        self,
        x_BMH: Tensor,
        places_BM: Tensor,
        about_BNH: Tensor | None,
        seen_BMN: Tensor,
        about_seen_BMN: Tensor,
        memory: StreamMemory | None,
    ) -> Tensor:
        """The decoder's states ``[B, M, H]``; ``about_BNH``, the description, is None where memory has its keys."""
        raise NotImplementedError

    def of_frames(self, hidden_BFH: Tensor, codes_BFK: Tensor, books: int) -> Tensor:
        """Logits ``[B, F, books, V]`` of steps, from the position before each; earlier codebooks' codes may be read."""
        raise NotImplementedError

    def ends(self, codes_BK: Tensor, book_B: Tensor) -> Tensor:
        """Whether a clip ends with the code of a codebook; by default the first codebook's end."""
        return (book_B == 0) & (codes_BK[:, 0] == self.finish)

    def dictate(self, position: Tensor, step: Tensor, book: Tensor, ended: Tensor) -> Tensor:
        """The code that the delays dictate at a place, -1 where they do not."""
        delay = torch.tensor(self.delays, device=position.device)[book]
        out = torch.full_like(position, -1)
        out = torch.where(step > ended + delay, self.filler, out)
        out = torch.where((step > ended + max(self.delays)) & (book == 0), self.end, out)
        return torch.where((position >= 0) & (step < delay), self.begin, out)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **unused: Any,
    ) -> CausalLMOutputWithPast:
        """Logits ``[B, L, codes + 2]`` of the next token of the stream."""
        del position_ids, unused
        if past_key_values is not None and past_key_values.get_seq_length():
            logits = self._next(input_ids[:, 0], past_key_values.layers[0])
        else:
            memory = None
            if use_cache and past_key_values is not None:
                memory = past_key_values.layers[0] = StreamMemory(input_ids.shape[1])
            logits = self._full_forward(input_ids, attention_mask, memory)
        return CausalLMOutputWithPast(logits=logits)  # pyright: ignore[reportArgumentType]

    def _full_forward(self, ids_BL: Tensor, mask_BL: Tensor | None, memory: StreamMemory | None) -> Tensor:
        """Every position of rows that begin with their prompts."""
        books, length, device = self.codebooks, ids_BL.shape[1], ids_BL.device
        rows = torch.arange(len(ids_BL), device=device)[:, None]
        valid_BL = torch.ones_like(ids_BL, dtype=torch.bool) if mask_BL is None else mask_BL.bool()
        start_BL = (ids_BL == self.start) & valid_BL
        start_BL = start_BL & (start_BL.cumsum(1) == 1)
        code_BL = (start_BL.cumsum(1) > 0) & ~start_BL & valid_BL
        before_BL = valid_BL & ~start_BL & ~code_BL
        after_sep_BL = ((ids_BL == self.sep) & before_BL).cumsum(1) > 0
        text_BL = before_BL & after_sep_BL & (ids_BL != self.sep)
        place_BL = torch.where(code_BL, code_BL.cumsum(1), 0) - 1
        fed_BL = text_BL | (code_BL & (place_BL % books == books - 1))
        fed_BL = fed_BL | start_BL if self.feeds_start else fed_BL
        at_BM, filled_BM = gathered(fed_BL)
        about_BN, known_BN = gathered(before_BL & ~after_sep_BL)

        first_B1, count = start_BL.long().argmax(1, keepdim=True), int(place_BL.max()) // books + 2
        within_L = torch.arange(count * books, device=device)
        codes_BFK = ids_BL.gather(1, (first_B1 + 1 + within_L).clamp(max=length - 1)).unflatten(1, (count, books))
        codes_BFK = codes_BFK.clamp(max=self.codes)
        x_BMH = self._fed(ids_BL, at_BM, text_BL, start_BL, place_BL, codes_BFK)
        pieces_BN = (ids_BL.gather(1, about_BN) - self.first_piece).clamp(min=0)
        about_BNH = self.describe(pieces_BN, known_BN)
        size = at_BM.shape[1]
        seen_BMM = filled_BM[:, None] & torch.ones(size, size, dtype=torch.bool, device=device).tril()
        places_BM = torch.arange(size, device=device).expand(len(ids_BL), -1)
        about_seen = known_BN[:, None].expand(-1, size, -1)
        hidden_BMH = self.run(x_BMH, places_BM, about_BNH, seen_BMM, about_seen, memory)

        before_BF = fed_BL.cumsum(1).gather(1, first_B1) - 1 + torch.arange(count, device=device)
        hidden_BFH = hidden_BMH[rows, before_BF.clamp(0, size - 1)]
        hidden_BFH = torch.where((before_BF >= 0)[..., None], hidden_BFH, torch.zeros_like(hidden_BFH))
        next_BL = torch.where(code_BL | start_BL, place_BL + 1, -1)
        of_BFKV = self.of_frames(hidden_BFH, codes_BFK, books)
        of_book = of_BFKV[rows, next_BL.clamp(min=0) // books, next_BL % books]
        of_book = torch.where((next_BL >= 0)[..., None], of_book, torch.zeros_like(of_book))
        frame_BL = place_BL.clamp(min=0) // books
        last_BLK, book_BL = codes_BFK[rows, frame_BL].flatten(0, 1), (place_BL % books).flatten()
        ends_BL = self.ends(last_BLK, book_BL).unflatten(0, ids_BL.shape) & code_BL
        ended_BL = torch.where(ends_BL, frame_BL, FAR).cummin(1).values
        if memory is not None:
            fed_B, known_B = fed_BL.sum(1), known_BN.sum(1)
            hidden_BH = hidden_BMH[rows[:, 0], (fed_B - 1).clamp(min=0)]
            frame_BK = codes_BFK[rows[:, 0], frame_BL[:, -1]]
            memory.state = RowState(hidden_BH, frame_BK, place_BL[:, -1], ended_BL[:, -1], fed_B, known_B)
            memory.most = size
        return self._logits(of_book, next_BL, ended_BL)

    def _fed(
        self, ids_BL: Tensor, at_BM: Tensor, text_BL: Tensor, start_BL: Tensor, place_BL: Tensor, codes_BFK: Tensor
    ) -> Tensor:
        """Inputs of the decoder: pieces of the text, the beginning, and steps."""
        rows = torch.arange(len(ids_BL), device=ids_BL.device)[:, None]
        frames_BFH = self.embed_frames(codes_BFK)
        x_BMH = frames_BFH[rows, place_BL.gather(1, at_BM).clamp(min=0) // self.codebooks]
        if self.feeds_start:
            begins = self.embed_frames(torch.full_like(codes_BFK[:, :1], self.begin))
            x_BMH = torch.where(start_BL.gather(1, at_BM)[..., None], begins, x_BMH)
        is_text_BM = text_BL.gather(1, at_BM)
        if is_text_BM.any():
            pieces_BM = (ids_BL.gather(1, at_BM) - self.first_piece).clamp(min=0)
            x_BMH = torch.where(is_text_BM[..., None], self.embed_text(torch.where(is_text_BM, pieces_BM, 0)), x_BMH)
        return x_BMH

    def _next(self, ids_B: Tensor, memory: StreamMemory) -> Tensor:
        state: RowState = memory.state
        rows, books = torch.arange(len(ids_B), device=ids_B.device), self.codebooks
        place_B = state.place_B + 1
        step_B, book_B = place_B // books, place_B % books
        frame_BK = state.frame_BK.clone()
        frame_BK[rows, book_B] = ids_B.clamp(max=self.codes)
        ended_B = torch.where(self.ends(frame_BK, book_B), torch.minimum(state.ended_B, step_B), state.ended_B)
        complete_B, hidden_BH = book_B == books - 1, state.hidden_BH
        any_complete = bool(complete_B.any())
        if any_complete:  # rows in the midst of a step compute what nothing reads
            fed_B1 = state.fed_B[:, None]
            seen = (torch.arange(memory.most + 1, device=ids_B.device) <= fed_B1)[:, None]
            about = next(iter(memory.about.values()))[0].shape[2] if memory.about else 1
            about_seen = (torch.arange(about, device=ids_B.device) < state.known_B[:, None])[:, None]
            x_B1H = self.embed_frames(frame_BK[:, None])
            new_BH = self.run(x_B1H, fed_B1, None, seen, about_seen, memory)[:, 0]
            hidden_BH = torch.where(complete_B[:, None], new_BH.to(hidden_BH.dtype), hidden_BH)
        fed_B = state.fed_B + complete_B.long()
        memory.advance(RowState(hidden_BH, frame_BK, place_B, ended_B, fed_B, state.known_B), any_complete)
        following = place_B + 1
        books_B = following % books
        logits_BKV = self.of_frames(hidden_BH[:, None], frame_BK[:, None], int(books_B.max()) + 1)[:, 0]
        return self._logits(logits_BKV[rows, books_B], following, ended_B)[:, None]

    def _logits(self, of_book: Tensor, position: Tensor, ended: Tensor) -> Tensor:
        """Logits ``[..., codes + 2]`` of the code at a place, what the delays dictate being certain."""
        step, book = position.div(self.codebooks, rounding_mode="floor"), position % self.codebooks
        if getattr(self.config, "learned_codebooks", "all") == "first":
            of_book = torch.where((book == 0)[..., None], of_book, of_book.detach())
        out = torch.cat([of_book, of_book.new_full((*of_book.shape[:-1], 2), NEVER)], -1)
        dictated = self.dictate(position, step, book, ended)
        certain = torch.full_like(out, NEVER).scatter(-1, dictated.clamp(min=0)[..., None], 0.0)
        return torch.where((dictated >= 0)[..., None], certain, out)

    def get_decoder(self) -> Any:
        """Itself: a step's heads are chosen by the position, so that trunk and head do not split."""
        return self

    def get_output_embeddings(self) -> Any:
        """None: there is a head for each codebook."""
        return None

    @classmethod
    def can_generate(cls) -> bool:
        """Not with transformers' ``generate``: the native engine samples it."""
        return False

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        """For peft, which asks whether it is there."""
        raise NotImplementedError("sample it with rlhf generate")


def gathered(which_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of what is meant, in order, ``[B, M]``, and which of them are real; M is at least 1."""
    most = max(1, int(which_BL.sum(1).max()))
    order = torch.argsort((~which_BL).long(), dim=1, stable=True)[:, :most]
    return order, which_BL.gather(1, order)


def additive(seen_BMN: Tensor, like: Tensor) -> Tensor:
    """A mask ``[B, 1, M, N]`` for transformers' attention; a position that sees nothing sees all alike."""
    hidden = torch.finfo(like.dtype).min
    return torch.zeros(seen_BMN.shape, dtype=like.dtype, device=like.device).masked_fill(~seen_BMN, hidden)[:, None]
