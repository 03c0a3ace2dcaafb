"""A few completions whose logprobs the trainer computes too: whether a server has the weights that it says it has."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlhf_core.api import ModelError, RlhfError, Rollout, RolloutRequest, SamplingParams
from rlhf_core.sdk import base_model, has_no_weights

TEXTS = ("What is 2 + 3?", "Say hello.", "The capital of France is", "1 2 3 4")
TOKENS = 8
"""Of each completion."""
TOLERANCE = {"float32": 1e-3}
"""Largest difference of a token's logprob, by what both compute in."""
ROUGH = 0.3
"""The same where one of them computes in less than float32."""


class Canary:
    """Compares a server's logprobs with those of the weights that it was sent.

    The weights are a version's own: the policy itself may be trained further meanwhile, in another thread. They are put
    into a copy of the policy that shares what is not trained and holds nothing else.

    Args:
        policy: ``LoadedModel``, before a strategy wraps it.
        context: prompt and completion tokens that fit.
        temperature: of the run's sampling.
    """

    def __init__(self, policy: Any, context: int, temperature: float) -> None:
        model = policy.model
        self.device: torch.device | None = None if has_no_weights(model) else next(model.parameters()).device
        parts = {id(p): _empty(p) if p.requires_grad else p for p in model.parameters()}
        self.model = copy.deepcopy(model, parts)
        self.model.eval()
        self._lock = threading.Lock()
        length = max(1, min(TOKENS, context // 2))
        self.sampling = SamplingParams(max_tokens=length, temperature=temperature or 1.0)
        prompts = [tuple(policy.tokenizer.encode(text))[: max(1, context - length)] for text in TEXTS]
        self.requests = [RolloutRequest(f"canary/{n}", ids, 0, 1000 + n) for n, ids in enumerate(prompts) if ids]

    def gap(self, tensors: Mapping[str, torch.Tensor], rollouts: Sequence[Rollout]) -> float:
        """Largest difference of a logprob, in nats."""
        with self._lock:  # servers are compared at the same time, and there is one copy
            return max(self._gap(tensors, rollout) for rollout in rollouts)

    def _gap(self, tensors: Mapping[str, torch.Tensor], rollout: Rollout) -> float:
        device = self.device or next(iter(tensors.values())).device
        ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]], device=device)
        with torch.no_grad():
            weights = {name: tensor.to(device) for name, tensor in (*self.model.named_buffers(), *tensors.items())}
            output = torch.func.functional_call(self.model, weights, (ids,), {"use_cache": False})
        logits_TV = output.logits[0, len(rollout.prompt_ids) - 1 : -1].float() / self.sampling.temperature
        own_T = torch.log_softmax(logits_TV, -1).gather(-1, ids[0, len(rollout.prompt_ids) :, None])[:, 0]
        return float((own_T.cpu() - torch.tensor(rollout.logprobs_T)).abs().max())


def wrong_weights(where: str, version: int, gap: float, limit: float, *, first: bool) -> RlhfError:
    """The error for a vLLM whose logprobs are not those of the weights that it was given.

    Args:
        where: which vLLM.
        version: that it was given.
        gap: largest difference, in nats.
        limit: of what is rounding.
        first: it is the first version: the user's input is wrong.
    """
    kind = ModelError if first else RlhfError
    return kind(
        f"{where} has other weights than version {version}, which it was sent: its logprobs are up to {gap:.2g} nats "
        f"from the trainer's, at most {limit:g} is rounding",
        why="the server serves other base weights or computes in another number type"
        if first
        else "the weights did not all arrive, or the server's model is another",
        fix="serve the run's model, in model.dtype; --set rollout.canary_tolerance=X allows for more",
    )


def compute_dtype(model: Any) -> str:
    """The number type that a policy computes in, such as ``float32``."""
    mixed = [m.__dict__["compute_dtype"] for m in model.modules() if "compute_dtype" in m.__dict__]
    return str(mixed[0] if mixed else next(base_model(model).parameters()).dtype).removeprefix("torch.")


def _empty(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)


def tolerance_of(chosen: float | None, policy_dtype: str, server_dtype: str) -> float:
    """The largest difference that is rounding."""
    if chosen is not None:
        return chosen
    return TOLERANCE.get(policy_dtype, ROUGH) if policy_dtype == server_dtype else ROUGH
