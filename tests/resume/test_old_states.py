"""Checkpoints of version 0.1 are read under today's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.rl.rollout_batch_state import read_batch
from rlhf_core.runs.old_states import upgraded_state
from rlhf_core.types.rollouts import FinishReason, Prompt, ScoreStatus
from rlhf_core.types.tree import load_tree, save_tree

PROMPT = Prompt("x", ({"role": "user", "content": "x"},), source="a")
ROLLOUT = {
    "prompt_id": "x",
    "group_index": 1,
    "prompt_ids": np.array([1, 2]),
    "completion_ids": np.array([5]),
    "logprobs_T": np.array([-0.5], np.float32),
    "policy_version": 3,
    "finish_reason": "length",
    "text": "t",
    "seed": 9,
    "mask_T": None,
}
BATCH = {
    "groups": [0],
    "mine": [0],
    "offset": 4,
    "rollouts": [0],
    "scores": [0],
    "aside": [[0, [0], [1]]],
    "metrics": {"refill/rounds": 2.0, "adaptive/one_sided": 1.0},
    "version": 3,
    "notes": [
        ["rollouts", [[0]]],
        ["rewards", [[0], [0]]],
        ["count", [{"groups_set_aside": 1}]],
        ["trace", ["refill", [{"event": "set_aside", "completions": [{"score": 0.5}]}]]],
    ],
    "shelf": {
        "rollouts": [ROLLOUT],
        "scores": [[0.25, {"a": 1.0}, "ok", ""], [None, {}, "timeout", "slow"]],
        "groups": [["a", "x", np.array([1, 2]), 1]],
    },
}


def old_state() -> dict[str, Any]:
    learner = {"optimizer": {}, "version": 7, "held": 2}
    rollouts = {"last": 3, "returned": [], "slots": [{"number": 3, "version": 3, "reads": 0, "batch": BATCH}]}
    return {
        "house": {"updater": learner, "order": {}, "heldout": "h", "paths": {"packing": True}, "self_checked": True},
        "checked_drift": True,
        "ranks": [{"rollouts": rollouts, "parts": {"reward/x": {"n": 1}}, "rng": {}, "hook_errors": {}}],
        "step": 4,
    }


def test_keys_have_their_new_names() -> None:
    state = upgraded_state(old_state())
    assert state["online"]["learner"] == {"optimizer": {}, "version": 7, "critic_only_updates": 2}
    assert state["online"]["forward_options"] == {"packing": True}
    assert (state["online"]["forward_checked"], state["checked_mismatch"], state["step"]) == (True, True, 4)
    assert state["ranks"][0]["components"] == {"reward/x": {"n": 1}}
    offline = {"updater": {"held": 0}, "data": "d", "ranks": [{"parts": {}}]}
    assert upgraded_state(offline) == {
        "learner": {"critic_only_updates": 0},
        "data": "d",
        "ranks": [{"components": {}}],
    }
    assert upgraded_state(state) == state, "today's are left alone"
    others = {"updater": 1, "held": 2, "ranks": [{"components": {}, "rollouts": 3}]}
    assert upgraded_state(others) == others, "so are those of a trainer that has keys of these names"


def test_a_batch_in_flight_is_read(tmp_path: Path) -> None:
    save_tree(tmp_path, "state", old_state())
    (entry,) = upgraded_state(load_tree(tmp_path, "state"))["ranks"][0]["scheduler"]["entries"]
    batch = read_batch(entry["batch"], lambda source, name: {("a", "x"): PROMPT}[source, name])
    assert (entry["number"], batch.version, batch.offset) == (3, 3, 4)
    assert batch.metrics == {"dynamic_sampling/rounds": 2.0, "adaptive/one_sided": 1.0}
    (rollout,) = batch.rollouts
    assert (rollout.prompt_ids, rollout.completion_ids, rollout.finish_reason) == ((1, 2), (5,), FinishReason.LENGTH)
    assert rollout.logprobs_T.tolist() == [-0.5]
    assert batch.groups[0].prompt is PROMPT
    assert batch.set_aside[0].scores[0].status is ScoreStatus.TIMEOUT
    assert [method for method, _ in batch.events] == ["rollouts", "rewards", "count", "trace"]
    assert batch.events[0][1][0][0] is rollout, "each once"
    assert batch.events[2][1] == ({"groups_set_aside": 1},)
    assert batch.events[3][1] == ("dynamic_sampling", [{"event": "set_aside", "completions": [{"score": 0.5}]}])
