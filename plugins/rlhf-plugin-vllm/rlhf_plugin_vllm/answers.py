"""From requests to what vLLM's ``/inference/v1/generate`` takes, and from its answers to rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_core.config import RlhfError
from rlhf_core.rollouts import FinishReason, Rollout, RolloutRequest, SamplingParams, VersionSpan

PATH = "/inference/v1/generate"
LEAST_BIAS = -100.0
"""The least that vLLM adds to a logit: e^-100 of a probability is beyond float32's rounding."""


def body_of(
    request: RolloutRequest, sampling: SamplingParams, ends: Sequence[int], model: str | None, never: Sequence[int] = ()
) -> dict[str, Any]:
    """One completion, token ids in and out; ``never`` are ids that are not sampled."""
    limit = min(sampling.max_tokens, request.max_tokens or sampling.max_tokens)
    stop = [text for text in sampling.stop if text]
    params: dict[str, Any] = {
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": request.seed,
        "logprobs": 0,
        "stop_token_ids": list(ends),
        "skip_special_tokens": False,
        "detokenize": bool(stop),
    }
    if stop:
        params |= {"stop": stop, "include_stop_str_in_output": True}
    if never:
        params |= {"logit_bias": dict.fromkeys(never, LEAST_BIAS)}
    body = {"token_ids": list(request.prompt_ids), "sampling_params": params}
    return body if model is None else {**body, "model": model}


def versions_of(answer: Any) -> set[str]:
    """What the server calls the weights that sampled an answer's tokens; empty where it does not say."""
    try:
        return {str(span["version"]) for span in answer["choices"][0]["weight_versions"] or []}
    except (KeyError, IndexError, TypeError):
        return set()


def spans_of(answer: Any) -> tuple[VersionSpan, ...]:
    """Which version of the run's weights sampled which tokens of an answer, as the server says."""
    try:
        rows = answer["choices"][0]["weight_versions"]
        return tuple(VersionSpan((int(r["start"]), int(r["end"])), number_of(str(r["version"]))) for r in rows)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RlhfError(
            "a vLLM server does not say which weights sampled which tokens", why=f"{error!r} in {answer!r:.300}"
        ) from error


def number_of(label: str) -> int:
    """The policy version of a label of :class:`~rlhf_plugin_vllm.weight_files.Published`."""
    return int(label.rpartition(":")[2])


def rollout_of(
    answer: Mapping[str, Any],
    request: RolloutRequest,
    version: int,
    ends: Sequence[int],
    tokenizer: Any,
    url: str,
    versions: tuple[VersionSpan, ...] = (),
) -> Rollout:
    where = f"{request.prompt_id}#{request.group_index}, vLLM at {url}"
    try:
        choice = answer["choices"][0]
        ids = tuple(int(i) for i in choice["token_ids"])
        rows = choice["logprobs"]["content"]
        logprobs_T = np.array([row["logprob"] for row in rows], np.float32)
        named = [int(row["token_id"]) for row in rows]
        finish = choice["finish_reason"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RlhfError(
            "a vLLM server did not answer with a completion", where=where, why=f"{error!r} in {answer!r:.300}"
        ) from error
    if finish not in ("stop", "length") or named != list(ids) or not ids:
        raise RlhfError(
            f"a vLLM server ended a completion with '{finish}', {len(ids)} tokens and logprobs of {len(named)}",
            where=where,
        )
    ended = ids[-1] in ends
    reason = FinishReason.LENGTH if finish == "length" else FinishReason.EOS if ended else FinishReason.STOP
    if reason is FinishReason.STOP and not isinstance(choice.get("stop_reason"), str):
        raise RlhfError(
            f"a vLLM server ended a completion at token {ids[-1]}, which ends none of the policy's ({list(ends)})",
            where=where,
            fix="let the generation_config.json of both name the same end tokens",
        )
    return Rollout(
        prompt_id=request.prompt_id,
        group_index=request.group_index,
        prompt_ids=request.prompt_ids,
        completion_ids=ids,
        logprobs_T=logprobs_T,
        policy_version=versions[0].version if versions else version,
        finish_reason=reason,
        text=tokenizer.decode(list(ids), skip_special_tokens=True),
        seed=request.seed,
        versions=versions,
    )
