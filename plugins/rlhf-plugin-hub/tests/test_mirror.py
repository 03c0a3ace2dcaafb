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
from rlhf_core.config import ConfigError, UserError
from rlhf_plugin_hub.address import Address
from rlhf_plugin_hub.mirror import claim, copy_run, fetch_run
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


@pytest.mark.slow
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


def cut_off(monkeypatch: pytest.MonkeyPatch, name: str, at: int) -> None:
    """The machine is lost when the ``at``-th copy of a file is half done."""
    local, seen = fsspec.get_filesystem_class("file"), [0]
    put = local.put_file

    def half(self: Any, source: str, target: str, **options: Any) -> None:
        seen[0] += source.endswith(name)
        if seen[0] < at:
            return put(self, source, target, **options)
        Path(target).write_bytes(Path(source).read_bytes()[: Path(source).stat().st_size // 2])
        raise OSError("the machine is lost")

    monkeypatch.setattr(local, "put_file", half)


def test_logs_that_were_cut_off_leave_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rlhf: Rlhf
) -> None:
    with monkeypatch.context() as patched:
        cut_off(patched, "metrics.jsonl", at=2)
        train(tmp_path / "run", str(tmp_path / "bucket"))
    assert rlhf("fetch", str(tmp_path / "bucket"), str(tmp_path / "back")).code == 0
    assert not [name for name in names(tmp_path / "back") if ".part" in name]
    out = rlhf("train", "--resume", str(tmp_path / "back"))
    assert out.code == 0, out.err
    assert rows(tmp_path / "back") == rows(tmp_path / "run")


def test_a_final_model_that_is_not_whole_is_not_taken_for_one(tmp_path: Path, rlhf: Rlhf) -> None:
    to = tmp_path / "bucket"
    train(tmp_path / "run", str(to), **{"trainer.steps": 1})
    weights = bytearray((to / "final/model.safetensors").read_bytes())
    weights[-1] ^= 1
    (to / "final/model.safetensors").write_bytes(weights)
    out = rlhf("fetch", str(to), str(tmp_path / "back"))
    assert (out.code, "final' is damaged" in out.err) == (2, True), out
    (to / "final/manifest.json").unlink()
    assert rlhf("fetch", str(to), str(tmp_path / "back")).code == 0
    assert not (tmp_path / "back/final").exists()


def test_what_is_removed_is_not_taken_for_whole_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to = tmp_path / "bucket"
    train(tmp_path / "run", str(to), **{"trainer.steps": 1})
    local = fsspec.get_filesystem_class("file")
    remove, wholes = local.rm, list[bool]()

    def watched(self: Any, path: str, **options: Any) -> None:
        remove(self, path, **options)
        wholes.append((to / "checkpoints/step-000001/manifest.json").exists())

    monkeypatch.setattr(local, "rm", watched)
    shutil.rmtree(tmp_path / "run/checkpoints/step-000001")
    copy_run(tmp_path / "run", Address.of(str(to), {}))
    assert (len(wholes), any(wholes)) == (2, False), "the manifest goes first"
    assert not (to / "checkpoints/step-000001").exists()


def test_a_longer_run_takes_back_the_summary_of_the_shorter(tmp_path: Path, rlhf: Rlhf) -> None:
    to = tmp_path / "bucket"
    train(tmp_path / "run", str(to), **{"trainer.steps": 1})
    assert (to / "summary.json").is_file()
    (tmp_path / "run/summary.json").unlink()
    copy_run(tmp_path / "run", Address.of(str(to), {}))
    assert not (to / "summary.json").exists()


def test_of_two_runs_at_one_address_the_later_one_has_it(tmp_path: Path) -> None:
    address = Address.of(str(tmp_path / "bucket"), {})
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        claim(folder, address)
        (folder / "plan.json").write_text(folder.name)
    with pytest.raises(UserError, match="another run or process"):
        copy_run(folders[0], address)
    copy_run(folders[1], address)
    assert (tmp_path / "bucket/plan.json").read_text() == "b"
    shutil.copytree(folders[1], tmp_path / "copy")
    claim(tmp_path / "copy", address)  # goes on somewhere else; the first may still be alive
    with pytest.raises(UserError, match="another run or process"):
        copy_run(folders[1], address)
    with pytest.raises(ConfigError, match="there is another run"):
        claim(folders[0], address)


@pytest.mark.parametrize("inside", ["", "/mirror"])
def test_a_run_is_not_copied_into_itself(inside: str, tmp_path: Path, rlhf: Rlhf) -> None:
    tracker = json.dumps([{"name": "mirror", "to": f"{tmp_path}/run{inside}"}])
    out = rlhf("train", "--algo", "grpo", "--set", f"trackers={tracker}", "--run-dir", str(tmp_path / "run"))
    assert (out.code, "is in the run's own folder" in out.err) == (2, True), out.err


def test_files_of_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "bucket/checkpoints/other").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="there is another run"):
        claim(tmp_path / "run", Address.of(str(tmp_path / "bucket"), {}))


@pytest.mark.parametrize(
    "settings",
    [
        {"to": "sftp://me:hunter2@host/run"},
        {"to": "s3://bucket/run", "options": {"secret": "hunter2"}},
        {"to": "s3://bucket/run", "options": {"client_kwargs": {"aws_secret_access_key": "hunter2"}}},
    ],
)
def test_a_password_is_not_written_into_a_plan(settings: Any, tmp_path: Path, rlhf: Rlhf) -> None:
    tracker = json.dumps([{"name": "mirror", **settings}])
    out = rlhf("train", "--algo", "grpo", "--dry-run", "--set", f"trackers={tracker}")
    assert (out.code, "environment" in out.err, "hunter2" in out.err) == (2, True, False), out.err


def test_nothing_is_written_outside_of_the_folder(tmp_path: Path) -> None:
    address = Address.of(f"memory://{tmp_path}/bucket", {})
    for name in ("plan.json", "checkpoints/step-000001/manifest.json", "../../outside"):
        address.files.store[f"{address.root}/{name}"] = address.files.store.get("x") or _memory_file(address, name)
    with pytest.raises(UserError, match="outside"):
        fetch_run(address, tmp_path / "deep/back")
    assert not list(tmp_path.rglob("outside"))


def _memory_file(address: Address, name: str) -> Any:
    path = f"{address.root}/file"
    address.files.pipe_file(path, name.encode())
    return address.files.store.pop(path)


def test_the_last_copy_of_a_run_that_needs_it_is_not_lost_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cut_off(monkeypatch, "final/model.safetensors", at=1)
    train(tmp_path / "run", "", trackers=[{"name": "mirror", "to": str(tmp_path / "bucket"), "required": True}])
    assert "the machine is lost" in caplog.text


def test_it_conforms(tmp_path: Path) -> None:
    check_tracker(MirrorConfig(to=str(tmp_path / "bucket")))


def test_the_newest_checkpoint_is_that_of_the_largest_step(tmp_path: Path) -> None:
    for step in ("step-999999", "step-1000000"):
        (tmp_path / "bucket/checkpoints" / step).mkdir(parents=True)
        (tmp_path / "bucket/checkpoints" / step / "manifest.json").write_text("{}")
    (tmp_path / "bucket/plan.json").write_text("{}")
    assert fetch_run(Address.of(str(tmp_path / "bucket"), {}), tmp_path / "back") == "step-1000000"
