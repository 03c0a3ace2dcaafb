"""Every component that was built is closed, whatever happens to the others."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlhf_core.config import ComponentConfig
from rlhf_core.rewards import Sample, Score
from rlhf_core.types.errors import ComponentError, RunDirError

from .conftest import OFFLINE, ONLINE, Train

CLOSED: list[str] = []


class Holds:
    """Wraps a component and holds something that must be released."""

    def __init__(self, name: str, inner: Any, fails: bool) -> None:
        self.name, self.inner, self.fails = name, inner, fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, batch: Any) -> Any:
        return self.inner(batch)

    def observe(self, step: int, metrics: Any) -> None:
        return None

    def log(self, step: int, metrics: Any) -> None:
        return None

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(float(len(s.completion))) for s in samples]

    def close(self) -> None:
        CLOSED.append(self.name)
        if self.fails:
            raise OSError(f"{self.name} is stuck")


class Base(ComponentConfig):
    """Builds a :class:`Holds`."""

    title: str = ""
    fails: bool = False
    inner: ClassVar[Any] = None

    def build(self, ctx: Any) -> Holds:
        made = type(self).inner.build(ctx) if type(self).inner else None
        return Holds(self.title or type(self).__name__, made, self.fails)


def make(kind: str) -> type[Base]:
    from rlhf_core.rl.single_turn import SingleTurnConfig
    from rlhf_plugin_grpo.config import GroupNormConfig, GrpoClipConfig
    from rlhf_plugin_native.config import NativeRolloutConfig
    from rlhf_plugin_pocket.config import PocketConfig
    from rlhf_plugin_sft.config import CrossEntropyConfig

    inner = {
        "Loss": GrpoClipConfig(),
        "Advantage": GroupNormConfig(),
        "Rollout": NativeRolloutConfig(),
        "Agent": SingleTurnConfig(),
        "Dataset": PocketConfig(subset="arithmetic"),
        "Imitation": CrossEntropyConfig(),
    }.get(kind)
    extra = {"consumes": {"Loss": "token_advantages", "Imitation": "labels"}.get(kind), "min_group_size": 2}
    notes = {"consumes": "ClassVar[str | None]", "min_group_size": "ClassVar[int]", "name": "str"}
    return type(
        kind, (Base,), {"__module__": __name__, "__annotations__": notes, "inner": inner, "name": "held", **extra}
    )


Loss, Advantage, Rollout, Agent = make("Loss"), make("Advantage"), make("Rollout"), make("Agent")
Dataset, Imitation, Reward = make("Dataset"), make("Imitation"), make("Reward")
Monitor, Tracker = make("Monitor"), make("Tracker")
HELD = {
    (k.lower(), "held"): f"{__name__}:{k}"
    for k in ("Loss", "Advantage", "Rollout", "Agent", "Dataset", "Reward", "Monitor", "Tracker")
}


def held(**settings: Any) -> dict[str, Any]:
    return {"name": "held", **settings}


FULL = {
    **{k: held() for k in ("loss", "advantage", "rollout", "agent")},
    "reward": held(title="the run's reward"),
    "dataset": held(reward=held(title="the source's reward")),
    "monitors": [held(fails=True)],
    "trackers": [held(fails=True), held(title="second tracker")],
}
ALL = {
    "Loss",
    "Advantage",
    "Rollout",
    "Agent",
    "the run's reward",
    "the source's reward",
    "Dataset",
    "Monitor",
    "Tracker",
    "second tracker",
}


@pytest.fixture(autouse=True)
def nothing_closed() -> None:
    CLOSED.clear()


def test_all_are_closed_once_although_some_fail_to(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        summary = train({"trainer": ONLINE["trainer"]}, change=FULL, components=HELD)
    assert summary["status"] == "completed"
    assert sorted(CLOSED) == sorted(ALL)
    said = [r.getMessage() for r in caplog.records if "failed to close" in r.getMessage()]
    assert said == [
        f"monitor 'held' (pytest {pytest.__version__}) failed to close: OSError: Monitor is stuck",
        f"tracker 'held' (pytest {pytest.__version__}) failed to close: OSError: Tracker is stuck",
    ]


def test_all_are_closed_when_the_run_fails(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_plugin_grpo.advantage import GroupNorm

    def broken(self: Any, *given: Any) -> Any:
        raise MemoryError("no room for the batch")

    monkeypatch.setattr(GroupNorm, "estimate", broken)
    with pytest.raises(ComponentError, match=r"estimate\(\) of advantage 'held'") as caught:
        train({"trainer": ONLINE["trainer"]}, change=FULL, components=HELD)
    assert isinstance(caught.value.__cause__, MemoryError)
    assert sorted(CLOSED) == sorted(ALL)


def test_what_was_built_is_closed_when_the_trainer_cannot_be(train: Train) -> None:
    change = {"trainer": {"rollout_batch_size": 4 * 100_000}, "dataset": held()}
    with pytest.raises(ValueError, match="different prompts of 'held'"):
        train({**ONLINE, "dataset": {}}, change=change, components=HELD)
    assert CLOSED == ["Dataset"]


def test_the_offline_trainer_closes_its_own(train: Train) -> None:
    imitation = {("loss", "held"): f"{__name__}:Imitation", ("monitor", "held"): f"{__name__}:Monitor"}
    train(OFFLINE, change={"loss": held(), "monitors": [held()]}, components=imitation)
    assert sorted(CLOSED) == ["Imitation", "Monitor"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), Exception("No space left on device (os error 28)")]
)
def test_a_disk_that_is_full_at_the_end(train: Train, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    from rlhf_core.models import save

    real = save.save_model

    def full(model: Any, tokenizer: Any, folder: Path, weights: Any, *, merge: bool = False) -> None:
        real(model, tokenizer, folder, weights, merge=merge)
        if merge:
            raise error

    monkeypatch.setattr("rlhf_core.models.save.save_model", full)
    with pytest.raises(RunDirError, match=r"(?s)cannot write '.*final': No space left.*last complete checkpoint is"):
        train(OFFLINE)
    run = train.folder / "run"
    assert sorted(p.name for p in run.iterdir() if "final" in p.name) == [], "nothing half written is left"
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000003"]
    monkeypatch.setattr("rlhf_core.models.save.save_model", real)
    assert train(OFFLINE, resume=True)["status"] == "completed"
    assert (run / "final" / "config.json").is_file()
