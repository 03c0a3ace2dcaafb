"""Parler-TTS as a causal language model of one stream of tokens: ``description <sep> text <start> codes <end>``.

Codes lie step after step, within a step codebook after codebook, as the delay pattern has them: codebook k of step s is
the code of frame s - k. All codes of a step are predicted from the same hidden state, by a head each, so that the
decoder runs once a step. What the pattern dictates (the beginning token before a codebook's first frame, the end token
after its last, ``<end>`` after the last step) has probability one; all else has the head's own, so that the sum over a
clip's tokens is the package's cross-entropy.

Suffixes: ``_B`` rows, ``_L`` positions of the stream, ``_M`` positions of the decoder, ``_K`` codebooks, ``_V`` codes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTextEncoding, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from rlhf_plugin_tts.parler.config import MARKS, ParlerConfig
from rlhf_plugin_tts.parler.layers import Decoder, Positions

NEVER = -1e4
"""A logit whose probability is 0 in every number type, and that leaves an entropy finite."""
DESCRIPTION, DECODER = 1.0, 2.0
"""What lies at a position of the cache."""


class ParlerStream(PreTrainedModel):
    """Weights have the names of ``ParlerTTSForConditionalGeneration``; its codec is left out.

    Args:
        config: of the folder.

    Raises:
        ValueError: a kind of Parler-TTS that this does not run.
    """

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
        self.codebooks, self.codes = inner.num_codebooks, inner.vocab_size
        self.begin, self.finish = inner.bos_token_id, inner.eos_token_id
        self.end, self.sep, self.start, _ = range(self.codes + 1, self.codes + 1 + len(MARKS))
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.decoder.initializer_factor)
        elif isinstance(module, Positions):
            with torch.no_grad():
                module.weights.copy_(Positions(self.config.decoder).weights)

    @property
    def layers(self) -> Any:
        """The decoder."""
        model: Any = self.decoder["model"]
        return model["decoder"]

    def get_decoder(self) -> Any:
        """Itself: a step's heads are chosen by the position, so that trunk and head do not split."""
        return self

    def get_input_embeddings(self) -> Any:
        """Of the pieces of texts."""
        return self.embed_prompts

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
            logits = self._next(input_ids, past_key_values)
        else:
            logits = self._whole(input_ids, attention_mask, past_key_values if use_cache else None)
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)  # pyright: ignore[reportArgumentType]

    def _heads(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., K, V]``."""
        heads: Any = self.decoder["lm_heads"]
        if isinstance(heads, nn.Linear):
            return heads(hidden).unflatten(-1, (self.codebooks, self.codes))
        return torch.stack([head(hidden) for head in heads], -2)

    def _logits(self, of_book: Tensor, place: Tensor, ended: Tensor) -> Tensor:
        """Logits ``[..., codes + 2]`` of the code at a place, what the pattern dictates being certain.

        Args:
            of_book: the head's, ``[..., V]``.
            place: number of the code; below 0 before there are any.
            ended: step at which codebook 0 ended; large where it has not.
        """
        step, book = place.div(self.codebooks, rounding_mode="floor"), place % self.codebooks
        if self.config.learned_codebooks == "first":
            of_book = torch.where((book == 0)[..., None], of_book, of_book.detach())
        more = of_book.new_full((*of_book.shape[:-1], 2), NEVER)
        out = torch.cat([of_book, more], -1)
        dictated = torch.full_like(place, -1)
        dictated = torch.where(step > ended + book, self.finish, dictated)
        dictated = torch.where((step >= ended + self.codebooks) & (book == 0), self.end, dictated)
        dictated = torch.where((place >= 0) & (step < book), self.begin, dictated)
        certain = torch.full_like(out, NEVER).scatter(-1, dictated.clamp(min=0)[..., None], 0.0)
        return torch.where((dictated >= 0)[..., None], certain, out)

    def _whole(self, ids_BL: Tensor, mask_BL: Tensor | None, cache: Any) -> Tensor:
        """Every position of rows that begin with their prompts."""
        books = self.codebooks
        valid_BL = torch.ones_like(ids_BL, dtype=torch.bool) if mask_BL is None else mask_BL.bool()
        start_BL = (ids_BL == self.start) & valid_BL
        code_BL = (start_BL.cumsum(1) - start_BL.long()) > 0
        text_BL = valid_BL & ~start_BL & ~code_BL
        after_sep_BL = ((ids_BL == self.sep) & text_BL).cumsum(1) > 0
        described_BL = text_BL & ~after_sep_BL
        text_BL = text_BL & after_sep_BL & (ids_BL != self.sep)
        place_BL = torch.where(code_BL, code_BL.cumsum(1), 0) - 1
        fed_BL = text_BL | start_BL | (code_BL & (place_BL % books == books - 1))
        at_BM, held_BM = _gathered(fed_BL)
        about_BN, known_BN = _gathered(described_BL)
        x_BMH = self._embedded(ids_BL, at_BM, text_BL, start_BL)
        about_BNH = self._described(ids_BL.gather(1, about_BN), known_BN)
        memory = None if cache is None else _Memory(self, cache, ids_BL.shape, at_BM, held_BM, about_BN, known_BN)
        size = at_BM.shape[1]
        seen_BMM = held_BM[:, None] & torch.ones(size, size, dtype=torch.bool, device=ids_BL.device).tril()
        about_seen = known_BN[:, None].expand(-1, size, -1)
        places_BM = torch.arange(size, device=ids_BL.device).expand(len(ids_BL), -1)
        store = _as_given if memory is None else memory.store
        hidden_BMH = self.layers.run(x_BMH, places_BM, about_BNH, seen_BMM, about_seen, store)
        last_BL = (fed_BL.cumsum(1) - 1).clamp(min=0)
        next_BL = torch.where(code_BL | start_BL, place_BL + 1, -1)
        ended_BL = self._ended(ids_BL, code_BL, place_BL)
        rows = torch.arange(len(ids_BL), device=ids_BL.device)[:, None]
        of_book = self._heads(hidden_BMH)[rows, last_BL, next_BL % books]
        of_book = torch.where((next_BL >= 0)[..., None], of_book, torch.zeros_like(of_book))
        if memory is not None:
            memory.remember(hidden_BMH[rows[:, 0], last_BL[:, -1]], place_BL[:, -1], ended_BL[:, -1], fed_BL.sum(1))
        return self._logits(of_book, next_BL, ended_BL)

    def _ended(self, ids_BL: Tensor, code_BL: Tensor, place_BL: Tensor) -> Tensor:
        """Step at which codebook 0 ended, as known at each position."""
        ends_BL = code_BL & (place_BL % self.codebooks == 0) & (ids_BL == self.finish)
        step_BL = place_BL.div(self.codebooks, rounding_mode="floor")
        return torch.where(ends_BL, step_BL, ids_BL.shape[1] + (1 << 20)).cummin(1).values

    def _embedded(self, ids_BL: Tensor, at_BM: Tensor, text_BL: Tensor, start_BL: Tensor) -> Tensor:
        """Inputs of the decoder: pieces of the text, the beginning, and each step's codes summed."""
        pieces = (ids_BL.gather(1, at_BM) - self.config.first_piece).clamp(0, self.config.vocab_size - 1)
        window_BMK = at_BM[..., None] - torch.arange(self.codebooks - 1, -1, -1, device=at_BM.device)
        window_BMK = window_BMK.clamp(min=0)
        codes_BMK = ids_BL.gather(1, window_BMK.flatten(1)).unflatten(1, window_BMK.shape[1:]).clamp(max=self.codes)
        codes_BMK = torch.where(start_BL.gather(1, at_BM)[..., None], self.begin, codes_BMK)
        summed = sum(table(codes_BMK[..., k]) for k, table in enumerate(self.layers.embed_tokens))
        return torch.where(text_BL.gather(1, at_BM)[..., None], self.embed_prompts(pieces), summed)

    def _described(self, ids_BN: Tensor, known_BN: Tensor) -> Tensor:
        """The description as the decoder's second attention reads it."""
        pieces = (ids_BN - self.config.first_piece).clamp(0, self.config.text_encoder.vocab_size - 1)
        known = known_BN.long()
        out = self.text_encoder(input_ids=pieces, attention_mask=known).last_hidden_state
        out = self.enc_to_dec_proj(out) if hasattr(self, "enc_to_dec_proj") else out
        return out * known[..., None]

    def _next(self, ids_B1: Tensor, cache: Any) -> Tensor:
        """One token more of every row."""
        state = _State.read(self, cache)
        ids_B, place_B = ids_B1[:, 0], state.place_B + 1
        step_B, book_B = place_B.div(self.codebooks, rounding_mode="floor"), place_B % self.codebooks
        summed_BH = torch.where((book_B == 0)[:, None], 0, state.summed_BH)
        for k in sorted(set(book_B.tolist())):
            added = self.layers.embed_tokens[k](ids_B.clamp(max=self.codes))
            summed_BH = torch.where((book_B == k)[:, None], summed_BH + added.float(), summed_BH)
        ended_B = torch.where(
            (book_B == 0) & (ids_B == self.finish), torch.minimum(state.ended_B, step_B), state.ended_B
        )
        whole_B = book_B == self.codebooks - 1
        hidden_BH = state.hidden_BH
        if whole_B.any():
            kind_BL = state.kind_BL
            seen = torch.cat([kind_BL == DECODER, torch.ones_like(kind_BL[:, :1], dtype=torch.bool)], 1)[:, None]
            about_seen = torch.cat([kind_BL == DESCRIPTION, torch.zeros_like(kind_BL[:, :1], dtype=torch.bool)], 1)

            def store(layer: int, key: Tensor, value: Tensor, *about: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
                keys, values = cache.update(key, value, layer)
                return keys, values, keys, values

            dtype = self.embed_prompts.weight.dtype
            x_B1H, at_B1 = summed_BH[:, None].to(dtype), state.fed_B[:, None]
            new_BH = self.layers.run(x_B1H, at_B1, None, seen, about_seen[:, None], store)[:, 0]
            hidden_BH = torch.where(whole_B[:, None], new_BH.float(), hidden_BH)
        else:
            for n in range(self.config.decoder.num_hidden_layers):
                like = cache.layers[n].keys[:, :, :1]
                cache.update(torch.zeros_like(like), torch.zeros_like(like), n)
        fed_B = state.fed_B + whole_B.long()
        _State(hidden_BH, summed_BH, place_B, ended_B, fed_B, state.kind_BL).write(cache, whole_B)
        following = place_B + 1
        logits_BKV = self._heads(hidden_BH.to(self.embed_prompts.weight.dtype))
        rows = torch.arange(len(ids_B), device=ids_B.device)
        return self._logits(logits_BKV[rows, following % self.codebooks], following, ended_B)[:, None]


class _State:
    """What the stream knows at a position, in the last layer of the cache: rows can leave and enter with it."""

    def __init__(
        self, hidden_BH: Tensor, summed_BH: Tensor, place_B: Tensor, ended_B: Tensor, fed_B: Tensor, kind_BL: Tensor
    ) -> None:
        self.hidden_BH, self.summed_BH, self.place_B, self.ended_B = hidden_BH, summed_BH, place_B, ended_B
        self.fed_B, self.kind_BL = fed_B, kind_BL

    @classmethod
    def read(cls, model: ParlerStream, cache: Any) -> _State:
        """As of the last position."""
        layer = cache.layers[model.config.decoder.num_hidden_layers]
        last = layer.keys[:, 0, -1]
        width = model.config.decoder.hidden_size
        numbers = last[:, 2 * width :].long()
        kind_BL = layer.values[:, 0, :, 0]
        return cls(last[:, :width], last[:, width : 2 * width], numbers[:, 0], numbers[:, 1], numbers[:, 2], kind_BL)

    def write(self, cache: Any, whole_B: Tensor) -> None:
        """One position more."""
        numbers = torch.stack([self.place_B, self.ended_B, self.fed_B], 1).float()
        key = torch.cat([self.hidden_BH.float(), self.summed_BH.float(), numbers], 1)[:, None, None]
        cache.update(key, (whole_B.float() * DECODER)[:, None, None, None], len(cache.layers) - 1)


class _Memory:
    """Fills an empty cache with prompts; what lies at a position is that position's, so that rows can be cut."""

    def __init__(
        self,
        model: ParlerStream,
        cache: Any,
        shape: torch.Size,
        at_BM: Tensor,
        held_BM: Tensor,
        about_BN: Tensor,
        known_BN: Tensor,
    ) -> None:
        self.model, self.cache, self.shape = model, cache, shape
        self.at_BM, self.held_BM, self.about_BN, self.known_BN = at_BM, held_BM, about_BN, known_BN

    def store(self, layer: int, key: Tensor, value: Tensor, about_key: Tensor, about_value: Tensor) -> Any:
        """Keep, and give them back."""
        laid = [
            self._lay(own, self.at_BM, self.held_BM) + self._lay(about, self.about_BN, self.known_BN)
            for own, about in ((key, about_key), (value, about_value))
        ]
        self.cache.update(*laid, layer)
        return key, value, about_key, about_value

    def _lay(self, x_BAMD: Tensor, at_BM: Tensor, held_BM: Tensor) -> Tensor:
        batch, heads, _, width = x_BAMD.shape
        flat = x_BAMD.new_zeros(batch, heads, self.shape[1], width)
        at = at_BM[:, None, :, None].expand_as(x_BAMD)
        return flat.scatter_add(2, at, x_BAMD * held_BM[:, None, :, None])

    def remember(self, hidden_BH: Tensor, place_B: Tensor, ended_B: Tensor, fed_B: Tensor) -> None:
        """The state after the prompts, at their last position, and what lies where."""
        numbers = torch.stack([place_B, ended_B, fed_B], 1).float()
        last = torch.cat([hidden_BH.float(), torch.zeros_like(hidden_BH).float(), numbers], 1)
        key = last.new_zeros(self.shape[0], 1, self.shape[1], last.shape[1])
        key[:, 0, -1] = last
        kind = last.new_zeros(self.shape).scatter_add(1, self.at_BM, self.held_BM.float() * DECODER)
        kind = kind.scatter_add(1, self.about_BN, self.known_BN.float() * DESCRIPTION)
        self.cache.update(key, kind[:, None, :, None], len(self.cache.layers) - 1)


def _gathered(which_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of what is meant, in order, ``[B, M]``, and which of them are real; M is at least 1."""
    most = max(1, int(which_BL.sum(1).max()))
    order = torch.argsort((~which_BL).long(), dim=1, stable=True)[:, :most]
    return order, which_BL.gather(1, order)


def _as_given(layer: int, *tensors: Tensor) -> Any:
    return tensors


AutoConfig.register("parler_tts", ParlerConfig)
AutoModelForCausalLM.register(ParlerConfig, ParlerStream)
