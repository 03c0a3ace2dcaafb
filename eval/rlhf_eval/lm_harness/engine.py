"""This toolkit's engine as a language model of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]

from rlhf_core.models import Formatter
from rlhf_core.rollouts import FinishReason, Rollout, RolloutRequest, SamplingParams, request_seed


class EngineLM(TemplateLM):
    """Generates with a rollout engine, and scores continuations with a forward of the model itself."""

    def __init__(self, policy: Any, engine: Any, max_tokens: int, seed: int) -> None:
        super().__init__()
        self.policy, self.engine, self.limit, self.seed = policy, engine, max_tokens, seed
        self.tokenizer = policy.tokenizer
        self.chat = False
        """Whether prompts come from the chat template, whose marks are control tokens; otherwise all of it is text."""
        self.shortened = 0
        """Prompts whose beginning was cut off because they did not fit."""
        self.rollouts: dict[str, list[Rollout]] = {}
        """Prompt -> its completions; several where a task samples more than once."""

    @property
    def eot_token_id(self) -> int:
        """The token that stands for the start where there is no context."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        """Names the chat template in lm_eval's cache."""
        return str(self.policy.source).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.tokenizer.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        self.chat = True
        return str(
            self.tokenizer.apply_chat_template(
                chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        if self.chat:
            return list(self.tokenizer.encode(string, add_special_tokens=bool(add_special_tokens)))
        if add_special_tokens:
            return list(Formatter.encode_raw(self.tokenizer, string, as_text=True))
        return list(Formatter(self.tokenizer, "auto").encode_text(string))

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Completions up to and without the first stop string; requests of equal settings are sampled together."""
        completions: dict[int, str] = {}
        groups: dict[SamplingParams, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(sampling_of(list(request.args)[1], self.limit), []).append(i)
        for sampling, which in groups.items():
            rollout_requests = [self._request(i, str(requests[i].args[0]), sampling) for i in which]
            for i, rollout in zip(which, self.engine.generate(rollout_requests, sampling, 0)):
                text, at = rollout.text, [rollout.text.find(s) for s in sampling.stop]
                self.rollouts.setdefault(str(requests[i].args[0]), []).append(rollout)
                completions[i] = text[: min((a for a in at if a >= 0), default=len(text))]
        return [completions[i] for i in range(len(requests))]

    def _request(self, i: int, context: str, sampling: SamplingParams) -> RolloutRequest:
        ids, context_size = Formatter.encode_raw(self.tokenizer, context, as_text=not self.chat), self.policy.context
        limit = min(sampling.max_tokens, context_size - 1)
        if len(ids) + limit > context_size:
            if len(ids) >= context_size:  # lm_eval keeps the end of a prompt that is too long
                self.shortened += 1
                limit = min(limit, context_size // 2)
                ids = ids[-(context_size - limit) :]
            limit = min(limit, context_size - len(ids))
        return RolloutRequest(f"lm_eval/{i}", ids, 0, request_seed(self.seed, "lm_eval", i), limit)

    @torch.inference_mode()
    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Sum of the continuation's logprobs, and whether it is the greedy one."""
        device = next(self.policy.model.parameters()).device
        results: list[tuple[float, bool]] = []
        for _, context, continuation in requests:
            window = (context + continuation)[-self.policy.context - 1 :]  # the last token is not fed
            self.shortened += len(window) < len(context) + len(continuation)
            ids = torch.tensor([window[:-1]], device=device)
            logprobs_TV = self.policy.model(input_ids=ids).logits[0, -len(continuation) :].float().log_softmax(-1)
            tokens_T = torch.tensor(window[1:][-len(continuation) :], device=device)
            greedy = bool((logprobs_TV.argmax(-1) == tokens_T).all())
            results.append((float(logprobs_TV.gather(-1, tokens_T[:, None]).sum()), greedy))
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Logprob of whole texts, in windows of the model's context, each token scored once."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]

        totals: list[float] = []
        for request in requests:
            windows = map(
                make_disjoint_window,
                get_rolling_token_windows(
                    self.tok_encode(str(request.args[0])), self.prefix_token_id, self.policy.context, 1
                ),
            )
            totals.append(sum(v for v, _ in self._loglikelihood_tokens([(None, c, t) for c, t in windows])))
        return totals


def sampling_of(options: Any, limit: int) -> SamplingParams:
    """lm_eval's generation settings as ours; greedy unless the task samples."""
    until = options.get("until") or ()
    stop = (until,) if isinstance(until, str) else tuple(until)
    most = options.get("max_gen_toks", options.get("max_new_tokens", options.get("max_tokens", limit)))
    sampled = bool(options.get("do_sample", float(options.get("temperature") or 0) > 0))
    temperature = float(options.get("temperature") or 1.0) if sampled else 0.0
    return SamplingParams(
        max_tokens=int(most),
        temperature=temperature,
        top_p=float(options.get("top_p") or 1.0),
        top_k=int(options.get("top_k") or 0),
        stop=tuple(s for s in stop if s),
    )


def truncated(rollouts: Sequence[Rollout]) -> float:
    """Share of the completions that were cut at the token limit."""
    cut = sum(r.finish_reason is FinishReason.LENGTH for r in rollouts)
    return cut / len(rollouts) if rollouts else 0.0
