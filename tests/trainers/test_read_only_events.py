"""A hook changes nothing that it sees: every field of every event, whatever it holds, however deep."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rlhf_core.plugins import hooks as hk
from rlhf_core.plugins.context import BuildContext
from rlhf_core.types.rollouts import FinishReason, Prompt, Rollout, Score


def rollout(n: int = 0, length: int = 3) -> Rollout:
    ids = tuple(range(length))
    info = {"calls": [{"tool": "add"}], "array": np.zeros(2)}
    logprobs, mask = np.full(length, -0.5, np.float32), np.ones(length, bool)
    return Rollout("p", n, (1, 2), ids, logprobs, 0, FinishReason.EOS, "text", 7 + n, mask, info)


def plan() -> dict[str, Any]:
    return {"config": {"trainer": {"name": "grpo", "steps": 3}, "trackers": [{"name": "csv"}]}, "seed": 1}


EVENTS = {
    "rlhf_plan_resolved": lambda: hk.PlanResolved(plan()),
    "rlhf_preflight": lambda: hk.Preflight(
        BuildContext(config=cast(Any, None), registry=cast(Any, None), seed=0, report={"reward": 1}),
        False,
        {"a": {"train": 1}},
    ),
    "rlhf_launch": lambda: hk.Launch(Path("plan.json"), 2),
    "rlhf_run_start": lambda: hk.RunStart(Path("run"), plan()),
    "rlhf_rollouts_ready": lambda: hk.StepRollouts(1, [rollout(0), rollout(1)]),
    "rlhf_rewards_ready": lambda: hk.StepRollouts(
        1, [rollout(0), rollout(1)], [Score(1.0, {"right": 1.0}), Score(0.0, {"right": 0.0})]
    ),
    "rlhf_batch_ready": lambda: hk.StepMetrics(1, {"sequences": 8, "tokens": 60}),
    "rlhf_step_end": lambda: hk.StepMetrics(1, {"reward/mean": 0.5}),
    "rlhf_eval_end": lambda: hk.StepMetrics(1, {"reward/mean": 0.5}),
    "rlhf_checkpoint_saved": lambda: hk.CheckpointSaved(1, Path("checkpoints/step-1")),
    "rlhf_run_end": lambda: hk.RunEnd(
        Path("run"), "completed", summary={"evaluations": [{"step": 1}], "array": np.zeros(2)}
    ),
    "rlhf_run_closed": lambda: hk.RunEnd(Path("run"), "failed", "OSError: no disk", {"steps": 1}),
}


class Vandal:
    """Tries everything on everything that an event holds, and counts what was refused."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def attempt(self, what: str, action: Any) -> None:
        try:
            action()
        except (TypeError, ValueError, AttributeError):  # FrozenInstanceError is an AttributeError
            return
        self.done.append(what)

    def wreck(self, value: Any, path: str) -> None:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                self.wreck(getattr(value, field.name), f"{path}.{field.name}")
                self.attempt(f"{path}.{field.name} =", lambda n=field.name: setattr(value, n, None))
                object.__setattr__(value, field.name, "vandalised")  # by force, on what is a copy
        elif isinstance(value, dict):
            for key in list(value):
                self.wreck(value[key], f"{path}[{key!r}]")
            for action in (
                lambda: value.__setitem__("x", 1),
                lambda: value.__delitem__(next(iter(value))),
                lambda: value.update(x=1),
                lambda: value.setdefault("x", 1),
                lambda: value.pop(next(iter(value))),
                lambda: value.popitem(),
                lambda: value.clear(),
                lambda: value.__ior__({"x": 1}),
            ):
                self.attempt(path, action)
            dict.__setitem__(value, "by force", 1)
        elif isinstance(value, (list, tuple)):
            for n, item in enumerate(value):
                self.wreck(item, f"{path}[{n}]")
            for action in (
                lambda: value.__setitem__(0, None),
                lambda: value.__delitem__(0),
                lambda: value.append(None),
                lambda: value.extend([None]),
                lambda: value.insert(0, None),
                lambda: value.pop(),
                lambda: value.remove(value[0]),
                lambda: value.reverse(),
                lambda: value.sort(key=id),
                lambda: value.clear(),
            ):
                self.attempt(path, action)
            if isinstance(value, list):
                list.append(value, "by force")
        elif isinstance(value, np.ndarray):
            self.attempt(path, lambda: value.__setitem__(0, 9))
            self.attempt(path, lambda: value.fill(9))
            self.attempt(path, lambda: value.setflags(write=True))
            self.attempt(path, lambda: np.add(value, 1, out=value))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def bus_of(hook: str, listener: Any) -> hk.HookBus:
    manager = hk.HookManager()
    plugin = type("Plugin", (), {hook: hk.hookimpl(staticmethod(lambda event: listener(event)))})
    manager.register(plugin(), name="vandal")
    return hk.HookBus(manager)


def test_every_hook_with_an_event_is_in_the_table() -> None:
    assert set(EVENTS) == set(hk.HOOK_NAMES) - {"rlhf_register"}


@pytest.mark.parametrize("hook", EVENTS)
def test_what_a_hook_does_to_any_field_is_refused_and_changes_nothing(hook: str) -> None:
    event, vandal = EVENTS[hook](), Vandal()
    before = copy.deepcopy(event)
    bus = bus_of(hook, lambda seen: vandal.wreck(seen, "event"))
    bus.launch(event) if hook == "rlhf_launch" else bus.fire(hook, event)
    assert not bus.errors
    assert vandal.done == []
    assert same(event, before)


@pytest.mark.parametrize("hook", EVENTS)
def test_a_hook_sees_equal_values_that_are_written_and_copied_as_before(hook: str) -> None:
    event, seen = EVENTS[hook](), list[Any]()
    bus = bus_of(hook, seen.append)
    bus.launch(event) if hook == "rlhf_launch" else bus.fire(hook, event)
    assert same(event, seen[0])
    assert same(pickle.loads(pickle.dumps(seen[0])), event)
    for field in dataclasses.fields(event):
        mine, given = getattr(event, field.name), getattr(seen[0], field.name)
        if field.name in ("plan", "metrics"):
            assert json.dumps(given) == json.dumps(mine)
            changed = copy.deepcopy(given)
            changed["mine"] = 1  # a copy is a plain one
            assert {**given, "x": 1} == {**mine, "x": 1}


def test_a_hook_that_tries_is_logged_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    def change(event: hk.StepRollouts) -> None:
        event.scores[0] = Score(1.0)  # type: ignore[index]

    bus = bus_of("rlhf_rewards_ready", change)
    event = EVENTS["rlhf_rewards_ready"]()
    bus.fire("rlhf_rewards_ready", event)
    assert bus.errors["vandal:rlhf_rewards_ready"] == 1
    assert "read-only" in caplog.text
    assert "change a copy" in caplog.text


def test_it_costs_little_and_nothing_without_a_listener() -> None:
    rollouts = [rollout(n, 1000) for n in range(256)]
    scores = [Score(0.5, {"a": 0.5}) for _ in rollouts]
    event = hk.StepRollouts(1, rollouts, scores)
    began = time.thread_time()  # not of the clock: other work on the machine is not the event's
    bus_of("rlhf_rewards_ready", lambda seen: None).fire("rlhf_rewards_ready", event)
    assert time.thread_time() - began < 0.5  # about 0.02 s; 256,000 tokens take minutes to sample
    quiet, reads = hk.HookBus(hk.HookManager()), list[str]()

    class Watched(list[Any]):
        def __iter__(self) -> Any:
            reads.append("read")
            return super().__iter__()

    quiet.fire("rlhf_rollouts_ready", hk.StepRollouts(1, Watched(rollouts)))
    assert not reads


def test_prompts_rollouts_and_scores_hold_what_nobody_changes() -> None:
    meta, logprobs = {"kind": ["sum"]}, np.full(2, -0.5, np.float32)
    prompt = Prompt("p", ({"role": "user", "content": "2 + 2?"},), meta=meta)
    sampled = Rollout("p", 0, (1,), (2, 3), logprobs, 0, FinishReason.EOS, "4", 1, info={"calls": [1]})
    parts = {"right": 1.0}
    score = Score(1.0, parts)
    meta["kind"].append("x")
    logprobs[:] = 0
    parts["right"] = 0.0
    assert (prompt.meta["kind"], list(sampled.logprobs_T), score.parts["right"]) == (["sum"], [-0.5, -0.5], 1.0)
    for change in (
        lambda: prompt.messages[0].__setitem__("content", "3 + 3?"),  # type: ignore[attr-defined]
        lambda: prompt.meta["kind"].append("y"),
        lambda: sampled.logprobs_T.__setitem__(0, 0.0),
        lambda: sampled.info["calls"].append(2),
        lambda: score.parts.__setitem__("right", 0.0),  # type: ignore[attr-defined]
    ):
        with pytest.raises((TypeError, ValueError), match="read-only"):
            change()
