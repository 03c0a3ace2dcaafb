"""Checkpoints of version 0.1, read under today's names. To be removed after the next release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.runs.dataclass_codec import Encoder

TRAINER = {"updater": "learner", "house": "online", "checked_drift": "checked_mismatch"}
ONLINE = {"updater": "learner", "order": "prompt_order", "paths": "forward_options", "self_checked": "forward_checked"}
RANK = {"parts": "components", "rollouts": "scheduler"}
SCHEDULER = {"slots": "entries"}
LEARNER = {"held": "critic_only_updates"}
METRICS = ("refill/", "dynamic_sampling/")
"""Prefix of metrics: as it was, as it is."""


def upgraded_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a checkpoint with today's keys; one that has them already is returned as it is."""
    if "parts" not in next(iter(state["ranks"]), {}):
        return dict(state)
    upgraded = _renamed(state, TRAINER)
    if isinstance(upgraded.get("online"), Mapping):
        upgraded["online"] = _renamed(upgraded["online"], ONLINE)
        upgraded["online"]["learner"] = _renamed(upgraded["online"]["learner"], LEARNER)
    if isinstance(upgraded.get("learner"), Mapping):
        upgraded["learner"] = _renamed(upgraded["learner"], LEARNER)
    upgraded["ranks"] = [_rank(rank) for rank in upgraded["ranks"]]
    return upgraded


def _rank(state: Mapping[str, Any]) -> dict[str, Any]:
    upgraded = _renamed(state, RANK)
    if isinstance(upgraded.get("scheduler"), Mapping):
        scheduler = _renamed(upgraded["scheduler"], SCHEDULER)
        scheduler["entries"] = [{**entry, "batch": _batch(entry["batch"])} for entry in scheduler["entries"]]
        upgraded["scheduler"] = scheduler
    return upgraded


def _renamed(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in state.items()}


def _batch(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rollout batch as :mod:`rlhf_core.runs.dataclass_codec` writes it today."""
    if "shelf" not in tree:
        return tree
    tables = {
        "Rollout": [_rollout(row) for row in tree["shelf"]["rollouts"]],
        "Score": [_score(row) for row in tree["shelf"]["scores"]],
        "PromptGroup": [_group(row) for row in tree["shelf"]["groups"]],
        "RolloutGroup": [
            {"group": _refs("PromptGroup", [g])[0], "rollouts": _refs("Rollout", r), "scores": _refs("Score", s)}
            for g, r, s in tree["aside"]
        ],
    }
    metrics = {name.replace(*METRICS): value for name, value in tree["metrics"].items()}
    tables["RolloutBatch"] = [
        {
            "groups": _refs("PromptGroup", tree["groups"]),
            "own_groups": _refs("PromptGroup", tree["mine"]),
            "rollouts": _refs("Rollout", tree["rollouts"]),
            "scores": _refs("Score", tree["scores"]),
            "offset": tree["offset"],
            "set_aside": _refs("RolloutGroup", range(len(tree["aside"]))),
            "metrics": {"map": metrics},
            "version": tree["version"],
            "events": [_event(method, arguments) for method, arguments in tree["notes"]],
        }
    ]
    return {"tables": tables, "value": {"ref": ["RolloutBatch", 0]}}


def _refs(kind: str, numbers: Sequence[int]) -> list[Any]:
    return [{"ref": [kind, number]} for number in numbers]


def _rollout(row: Mapping[str, Any]) -> dict[str, Any]:
    ids = {name: {"ids": row[name]} for name in ("prompt_ids", "completion_ids")}
    return {**row, **ids, "finish_reason": {"enum": ["FinishReason", row["finish_reason"]]}}


def _score(row: Sequence[Any]) -> dict[str, Any]:
    value, parts, status, detail = row
    return {"value": value, "parts": {"map": parts}, "status": {"enum": ["ScoreStatus", status]}, "detail": detail}


def _group(row: Sequence[Any]) -> dict[str, Any]:
    source, prompt_id, token_ids, group_size = row
    prompt = {"leaf": ["Prompt", (source, prompt_id)]}
    return {"prompt": prompt, "token_ids": {"ids": token_ids}, "group_size": group_size}


def _event(method: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    if method == "rollouts":
        return (method, (_refs("Rollout", arguments[0]),))
    if method == "rewards":
        return (method, (_refs("Rollout", arguments[0]), _refs("Score", arguments[1])))
    if method == "trace":
        arguments = ("dynamic_sampling" if arguments[0] == "refill" else arguments[0], arguments[1])
    return (method, tuple(Encoder({}).encode(argument) for argument in arguments))
