"""A run whose machine is lost goes on from its mirror as if nothing had been."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import rlhf_core
from rlhf_plugin_hub.address import Address
from rlhf_plugin_hub.mirror_config import MirrorConfig
from rlhf_testing import check_tracker

Rlhf = Callable[..., Any]
SMALL = {
    "threads": 1,
    "trainer.steps": 3,
    "trainer.rollout_batch_size": 8,
    "trainer.group_size": 4,
    "trainer.sampling": {"max_tokens": 8},
    "trainer.eval_samples": 0,
    "trainer.gold_samples": 0,
    "trainer.checkpoint_every": 1,
    "trainer.keep_checkpoints": 1,
    "dataset.limit": 32,
}


def train(folder: Path, to: str, **settings: Any) -> Any:
    every = {**SMALL, "trackers": [{"name": "mirror", "to": to}], **settings}
    words = {"dataset": "pocket/arithmetic", "reward": "verifier", "run_dir": folder, "progress": False}
    return rlhf_core.train("grpo", settings=every, **words)


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("time/")} for row in found]


def names(folder: Path) -> set[str]:
    return {f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize("protocol", ["", "memory://"])
def test_a_lost_run_goes_on_as_if_undisturbed(protocol: str, tmp_path: Path, rlhf: Rlhf) -> None:
    to = f"{protocol}{tmp_path}/bucket"
    train(tmp_path / "lost", to, **{"trainer.steps": 2})
    shutil.rmtree(tmp_path / "lost")
    out = rlhf("fetch", to, str(tmp_path / "back"))
    assert (out.code, "step-000002" in out.out) == (0, True), out
    assert not any(name.startswith("checkpoints/step-000001") for name in names(tmp_path / "back")), "deleted there too"
    out = rlhf("train", "--resume", str(tmp_path / "back"), "--set", "trainer.steps=3")
    assert out.code == 0, out.err
    train(tmp_path / "whole", f"{protocol}{tmp_path}/other")
    assert rows(tmp_path / "back") == rows(tmp_path / "whole")
    weights = [(tmp_path / name / "final/model.safetensors").read_bytes() for name in ("back", "whole")]
    assert weights[0] == weights[1]
    address = Address.of(to, {})
    assert address.read("final/model.safetensors") == weights[0], "the final model of the longer run"
    assert address.read("metrics.jsonl") == (tmp_path / "back/metrics.jsonl").read_bytes()


def test_a_checkpoint_that_was_cut_off_is_passed_over(tmp_path: Path, rlhf: Rlhf) -> None:
    to = tmp_path / "bucket"
    train(tmp_path / "run", str(to), **{"trainer.steps": 2, "trainer.keep_checkpoints": 2})
    (to / "checkpoints/step-000002/manifest.json").unlink()
    out = rlhf("fetch", str(to), str(tmp_path / "back"))
    assert (out.code, "step-000001" in out.out) == (0, True)
    (to / "checkpoints/step-000001/model/model.safetensors").write_bytes(b"other")
    out = rlhf("fetch", str(to), str(tmp_path / "damaged"))
    assert (out.code, "is damaged" in out.err) == (2, True)
    assert not list(tmp_path.glob("*damaged*")), "nothing is left behind"


@pytest.mark.parametrize(
    ("to", "said"),
    [("nosuch://bucket/run", "cannot be opened"), ("{run}", "there is another run at"), ("/proc/x", "write")],
)
def test_an_address_that_cannot_work_is_refused_before_the_run(to: str, said: str, tmp_path: Path, rlhf: Rlhf) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/plan.json").write_text("{}")
    tracker = json.dumps([{"name": "mirror", "to": to.format(run=tmp_path / "bucket")}])
    out = rlhf("train", "--algo", "grpo", "--set", f"trackers={tracker}", "--run-dir", str(tmp_path / "run"))
    assert (out.code, said in out.err) == (2, True), out.err
    assert not (tmp_path / "run").exists()
    out = rlhf("fetch", str(tmp_path / "bucket"), str(tmp_path / "back"))
    assert (out.code, "no checkpoint is whole" in out.err) == (2, True), out.err


@pytest.mark.parametrize("required", [False, True])
def test_a_copy_that_fails_is_counted_or_ends_the_run(
    required: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, *args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fsspec.get_filesystem_class("file"), "put_file", full)
    tracker = {"name": "mirror", "to": str(tmp_path / "bucket"), "required": required}
    run = train(tmp_path / "run", "", trackers=[tracker])
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["steps"] == (1 if required else 3)
    text = json.dumps(summary)
    assert ("No space left" in text) is required
    assert (sum(summary["hook_errors"].values()) >= 3) is not required
    assert run is not None


def test_it_conforms(tmp_path: Path) -> None:
    check_tracker(MirrorConfig(to=str(tmp_path / "bucket")))
