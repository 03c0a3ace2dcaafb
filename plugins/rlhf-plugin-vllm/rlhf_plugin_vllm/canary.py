"""A few completions whose logprobs the trainer computes too: whether a server has the weights that it says it has."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rlhf_core.config import RlhfError
from rlhf_core.models import ModelError, has_meta_weights
from rlhf_core.models.four_bits import numbers
from rlhf_core.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_vllm.arrival import CanaryToken, UpdateCheck, least_noise
from rlhf_plugin_vllm.skeleton import Skeleton

TEXTS = Path(__file__).with_name("canary.txt").read_text().splitlines()
TOKENS = 8
TOLERANCE = {"float32": 1e-3}
"""Largest difference of a token's logprob that can be rounding, by what the engine computes in."""
ROUGH = 0.3
"""The same where it computes in less than float32."""


class Sent(NamedTuple):
    """Weights, and who has been given them."""

    where: str
    """Which vLLM: ``vLLM at http://127.0.0.1:8000``."""
    dtype: str
    """What it computes in, such as ``bfloat16``."""
    version: int
    tensors: Mapping[str, torch.Tensor]
    """The trained ones, or all; each is looked up when it is needed."""
    first: bool
    """It is the run's first version: engine and trainer have the same weights, unless the user's input is wrong."""


class Canary:
    """Compares an engine's logprobs with those of the version that it was sent, and of earlier ones. The weights are
    put into a skeleton of the policy a layer at a time, in the engine's number type, so that both differ by the order
    of additions alone; the first version of a start shows how much that is."""

    def __init__(
        self,
        policy: Any,
        context: int,
        temperature: float,
        frozen: Mapping[str, torch.Tensor] | None = None,
        device: torch.device | None = None,
    ) -> None:
        model = policy.model
        here = None if has_meta_weights(model) else next(model.parameters()).device
        self.device: torch.device | None = here if device is None else device
        untrained = {name: p for name, p in model.named_parameters() if not p.requires_grad} if frozen is None else {}
        self._frozen: Mapping[str, torch.Tensor] = untrained if frozen is None else frozen
        self.skeleton = Skeleton(model)
        self._lock = threading.Lock()
        self._arrivals: dict[tuple[str, str], UpdateCheck] = {}
        """By number type and engine."""
        length = max(1, min(TOKENS, context // 2))
        self.sampling = SamplingParams(max_tokens=length, temperature=temperature or 1.0)
        prompts = [tuple(policy.tokenizer.encode(text))[: max(1, context - length)] for text in TEXTS]
        self.requests = [RolloutRequest(f"canary/{n}", ids, 0, 1000 + n) for n, ids in enumerate(prompts) if ids]

    def check(self, sent: Sent, rollouts: Sequence[Rollout], tolerance: float | None) -> float:
        """The largest difference of a logprob, in nats; raises beyond ``tolerance`` (None: as the first version
        shows)."""
        with self._lock:  # servers are compared at the same time, and there is one skeleton
            tokens = self.tokens(sent, rollouts)
            gap = float(
                torch.tensor([t.engine - t.trainer for t in tokens], dtype=torch.float64).abs().max()
            )  # keeps NaN
            limit = TOLERANCE.get(sent.dtype, ROUGH) if tolerance is None else tolerance
            if not gap <= limit:
                why = f"its logprobs are up to {gap:.2g} nats from the trainer's, at most {limit:g} is rounding"
                raise wrong_weights(sent, why)
            if why := self._arrival(sent, tokens).missing(tokens, any_noise=tolerance is not None):
                raise wrong_weights(sent, why)
        return gap

    def tokens(self, sent: Sent, rollouts: Sequence[Rollout]) -> list[CanaryToken]:
        """Every token of some completions, with its logprobs of both sides."""
        rows = [(*rollout.prompt_ids, *rollout.completion_ids) for rollout in rollouts]
        logits = self._logits(sent, rows)
        return [token for rollout, logits_TV in zip(rollouts, logits) for token in self._tokens(rollout, logits_TV)]

    def _logits(self, sent: Sent, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """``[T, V]`` of each row, all computed together, so that each weight is taken once; padding comes last."""
        dtype: torch.dtype = getattr(torch, sent.dtype)
        device = self.device or next(iter(sent.tensors.values())).device

        def weight(name: str) -> torch.Tensor:
            value = (sent.tensors if name in sent.tensors else self._frozen)[name]
            return numbers(value).detach().to(device, dtype)

        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
        output = self.skeleton(weight, device, dtype, ids, use_cache=False)
        return [output.logits[n, : len(row)] for n, row in enumerate(rows)]

    def _arrival(self, sent: Sent, tokens: Sequence[CanaryToken]) -> UpdateCheck:
        """What is known of an engine; one that comes later than others is measured by the noise of theirs."""
        key = (sent.dtype, sent.where)
        if key not in self._arrivals:
            others = [arrival.noise for (dtype, _), arrival in self._arrivals.items() if dtype == sent.dtype]
            noise = None if sent.first else max(others, default=None)
            self._arrivals[key] = UpdateCheck(tokens, least_noise(sent.dtype), noise)
        return self._arrivals[key]

    def _tokens(self, rollout: Rollout, logits_TV: torch.Tensor) -> list[CanaryToken]:
        """A completion's tokens with their logprobs of both sides; logits of its prompt and itself."""
        ids, start = (*rollout.prompt_ids, *rollout.completion_ids), len(rollout.prompt_ids)
        logits_TV = logits_TV[start - 1 : -1].float() / self.sampling.temperature
        token_T1 = torch.tensor(rollout.completion_ids, device=logits_TV.device)[:, None]
        logprobs_TV = torch.log_softmax(logits_TV, -1)
        trainer_T = logprobs_TV.gather(-1, token_T1)[:, 0].tolist()
        spread_TV = logprobs_TV.exp().scatter_add(-1, token_T1, logprobs_TV.new_full(token_T1.shape, -1.0))
        spread_T = spread_TV.norm(dim=-1).tolist()
        rows = zip(range(start, len(ids)), rollout.logprobs_T, trainer_T, spread_T, strict=True)
        return [CanaryToken(ids[:n], ids[n], float(engine), trainer, s) for n, engine, trainer, s in rows]


def wrong_weights(sent: Sent, why: str) -> RlhfError:
    """The error for a vLLM whose logprobs are not those of the weights that it was given."""
    kind = ModelError if sent.first else RlhfError
    reason = (
        "the server serves other base weights, samples at another temperature, or computes in another number type"
        if sent.first
        else "the weights did not all arrive, or the server's model is another"
    )
    return kind(
        f"{sent.where} has other weights than version {sent.version}, which it was sent: {why}",
        why=reason,
        fix="serve the run's model, in model.dtype; --set rollout.canary_tolerance=X allows for more rounding",
    )


def compute_dtype(model: Any) -> str:
    """The number type that a policy computes in, such as ``float32``."""
    mixed = [m.__dict__["compute_dtype"] for m in model.modules() if "compute_dtype" in m.__dict__]
    return str(mixed[0] if mixed else next(model.parameters()).dtype).removeprefix("torch.")
