"""The native engine: samples from the policy's own weights with a hand-written decode loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import transformers

from rlhf_core.config import ConfigError
from rlhf_core.models import ModelError, split_lm_head
from rlhf_core.models.layers.trunk_and_head import WITHOUT_TEXT, base_model, compute_dtype, length_limit
from rlhf_core.models.modality import OwnTokens, modality_of
from rlhf_core.models.prompt_format import end_ids
from rlhf_core.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_core.training.forward import structure
from rlhf_plugin_native.captured_step import CapturedStep, captured_step
from rlhf_plugin_native.compiled_attention import compiled_step
from rlhf_plugin_native.decode import Decoder, SampledTokens, limit_of
from rlhf_plugin_native.decode_step import WORTH_TOKENS, DecodeStep, decode_step, growing, make_cache, plain_step
from rlhf_plugin_native.routing import add_choices, recorder
from rlhf_plugin_native.sampling import StopStrings, sampling_forwards
from rlhf_plugin_native.stream import NativeStream
from rlhf_plugin_native.stream_decode import StreamDecoder
from rlhf_plugin_native.token_by_token import decodes
from rlhf_plugin_native.turn_cache import TurnCache, check_budget

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_plugin_native.config import NativeRolloutConfig
    from rlhf_plugin_native.row_step import RowStep


class NativeEngine:
    """Requests that share a prompt read it once; finished sequences leave the batch and waiting ones enter.

    A completion depends on its prompt and its seed alone, not on what it is decoded with (up to the rounding of a
    matrix product, about 1e-6 in a logprob).
    """

    on_ended: Callable[[int], None] | None = None
    """:meth:`generate` calls it every few seconds with how many more completions have ended."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        context: int,
        max_concurrent: int = 256,
        max_batch_tokens: int | None = None,
        keep_mib: int = 0,
        compile: bool = False,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.context = min(context, length_limit(model) or context)
        self.max_concurrent, self.max_batch_tokens, self.keep_mib = max_concurrent, max_batch_tokens, keep_mib
        self.compile = compile
        if not decodes(model):
            name = type(base_model(model)).__name__
            raise ModelError(
                f"{name} cannot be sampled by the native engine",
                why=f"with transformers {transformers.__version__} its cache cannot be carried from token to token for "
                "sequences of different length",
                fix="choose a model with a cache of keys and values, or recurrent states in transformers' cache",
            )
        self.modality, self.recorder = modality_of(tokenizer), recorder(model)
        self.ends, self.without_text = end_ids(base_model(model), tokenizer), ids_without_text(model)

    @classmethod
    def from_config(cls, config: NativeRolloutConfig, ctx: BuildContext) -> NativeEngine:
        policy = ctx.policy
        check_budget(config, ctx)
        return cls(
            policy.model,
            policy.tokenizer,
            policy.context,
            config.max_concurrent,
            config.max_batch_tokens,
            config.keep_mib,
            config.compile,
        )

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        """Sample one completion per request, in order.

        ``min_tokens`` counts the EOS: a completion has at least so many tokens. Stop strings may span tokens and
        are kept. What the logprobs mean is described in :func:`rlhf_plugin_native.sampling.draw`.
        """
        on_ended = self.on_ended
        if on_ended is None:
            return self.generate_each(requests, sampling, policy_version)
        return self.generate_each(requests, sampling, policy_version, lambda ended, tokens: on_ended(len(ended)))

    def generate_each(
        self,
        requests: Sequence[RolloutRequest],
        sampling: SamplingParams,
        policy_version: int,
        ended: Callable[[Sequence[tuple[int, Rollout]], int], None] | None = None,
        every_s: float = 2.0,
    ) -> list[Rollout]:
        """As :meth:`generate`, on the way: ``ended`` gets (place among the requests, rollout) of what has ended since
        its last call, each once, and the number of tokens drawn so far."""
        for request in requests:
            self.check(request, sampling)
        if not requests:
            return []
        if self.recorder is not None:
            self.recorder.begin_sampling(policy_version)
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt_ids), requests[i].prompt_ids))

        def report(new: dict[int, SampledTokens], tokens: int) -> None:
            if ended is not None:
                drawn = sorted((order[at], row) for at, row in new.items())
                ended([(i, self._rollout(requests[i], row, policy_version)) for i, row in drawn], tokens)

        with sampling_forwards(self.model), torch.no_grad():
            decoder = self._decoder([requests[i] for i in order], sampling)
            results = decoder.run(report if ended else None, every_s)
        drawn = dict(zip(order, results, strict=True))
        return [self._rollout(r, drawn[i], policy_version) for i, r in enumerate(requests)]

    def stream(self, request: RolloutRequest, sampling: SamplingParams, token: Callable[[int], None]) -> Rollout:
        """As :meth:`generate` for one request, with each token as soon as it is drawn."""
        self.check(request, sampling)
        with sampling_forwards(self.model), torch.no_grad():
            drawn = self._decoder([request], sampling).run(token=token)[0]
        return self._rollout(request, drawn, 0)

    def check(self, request: RolloutRequest, sampling: SamplingParams) -> None:
        length, limit = len(request.prompt_ids), limit_of(request, sampling)
        if length == 0:
            raise ConfigError(f"prompt '{request.prompt_id}' has no tokens", fix="drop it from the dataset")
        if limit < 1:
            raise ConfigError(
                f"prompt '{request.prompt_id}' has {length} tokens, and is asked for {limit} more",
                why=f"a turn has one token at least; the model's context is {self.context}",
                fix="set dataset.max_prompt_tokens lower",
            )
        if length + limit > self.context:
            raise ConfigError(
                f"prompt '{request.prompt_id}' has {length} tokens; with max_tokens {limit} that is "
                f"{length + limit}, more than the model's context of {self.context}",
                fix=f"set trainer.sampling.max_tokens to at most {max(0, self.context - length)}, "
                "or dataset.max_prompt_tokens lower",
            )

    def open_stream(self, sampling: SamplingParams, policy_version: int) -> NativeStream | None:
        """Sample turns as they come, with the weights of now; None for a model with layers that do not attend to
        all, or whose experts are recorded."""
        arguments = self._arguments(sampling)
        if self.recorder is not None or not growing(make_cache(arguments["cache_config"])):
            return None
        decoder = StreamDecoder(TurnCache(self.keep_mib << 20), **arguments)
        return NativeStream(self, decoder, lambda request, drawn: self._rollout(request, drawn, policy_version))

    def _decoder(self, requests: Sequence[RolloutRequest], sampling: SamplingParams) -> Decoder:
        return Decoder(requests=requests, **self._arguments(sampling, len(requests)))

    def _arguments(self, sampling: SamplingParams, requests: int | None = None) -> dict[str, Any]:
        """Of a decoder with the weights of now, for so many requests; None of those that come one after the other."""
        parts, step = split_lm_head(self.model), None
        with torch.no_grad():
            if sampling.max_tokens >= WORTH_TOKENS:
                step = (self._compiled(requests) if self.compile else None) or decode_step(self.model)

        def forward(ids_BL: torch.Tensor, mask_BL: torch.Tensor | None, positions_BL: torch.Tensor, cache: Any) -> Any:
            return self.logits(ids_BL, mask_BL, positions_BL, cache, step)

        return {
            "forward": forward,
            "sampling": sampling,
            "ends": self.ends,
            "stop": StopStrings(self.tokenizer, sampling.stop),
            "cache_config": (parts.trunk if parts else base_model(self.model)).config,
            "device": next(self.model.parameters()).device,
            "max_concurrent": self.max_concurrent,
            "max_batch_tokens": self.max_batch_tokens,
        }

    def _compiled(self, requests: int | None) -> DecodeStep | RowStep | CapturedStep | None:
        if next(self.model.parameters()).device.type == "cuda":
            return captured_step(self.model) if requests is not None and self.recorder is None else None
        if requests != 1:
            return compiled_step(self.model)
        from rlhf_plugin_native.row_step import row_step  # its compiler takes seconds to import

        return row_step(self.model, compute_dtype(self.model))

    def logits(
        self,
        ids_BL: torch.Tensor,
        mask_BK: torch.Tensor | None,
        positions_BL: torch.Tensor,
        cache: Any,
        step: DecodeStep | RowStep | CapturedStep | None = None,
    ) -> torch.Tensor:
        """Logits ``[B, V]`` after the last position; the cache grows by L. None masks nothing."""
        if step is not None and ids_BL.shape[1] == 1 and cache.get_seq_length():
            return step(ids_BL, mask_BK, positions_BL, cache)
        parts = split_lm_head(self.model) if structure(self.model).split else None
        if self.recorder is None:
            return plain_step(self.model, parts, ids_BL, mask_BK, positions_BL, cache)
        self.recorder.record()
        logits_BV = plain_step(self.model, parts, ids_BL, mask_BK, positions_BL, cache)
        add_choices(cache, self.recorder.recorded(), len(ids_BL))
        return logits_BV

    def _text(self, tokens: Sequence[int]) -> str:
        if isinstance(self.modality, OwnTokens):
            return self.modality.completion_text(tokens)
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def _rollout(self, request: RolloutRequest, drawn: SampledTokens, version: int) -> Rollout:
        if self.recorder is not None and drawn.chosen_TLK is not None:
            self.recorder.keep((*request.prompt_ids, *drawn.tokens), drawn.chosen_TLK)
        return Rollout(
            prompt_id=request.prompt_id,
            group_index=request.group_index,
            prompt_ids=request.prompt_ids,
            completion_ids=tuple(drawn.tokens),
            logprobs_T=drawn.logprobs_T,
            policy_version=version,
            finish_reason=drawn.finish,
            text=self._text(drawn.tokens),
            seed=request.seed,
            media=() if self.modality is None else self.modality.media(drawn.tokens),
            support=drawn.support,
        )


def ids_without_text(model: Any) -> list[int]:
    """Ids that the core masked at loading, as no token of the tokenizer has them."""
    modules = {name: m for m in base_model(model).modules() for name in m._buffers if name == WITHOUT_TEXT}
    return modules[WITHOUT_TEXT]._buffers[WITHOUT_TEXT].tolist() if modules else []
