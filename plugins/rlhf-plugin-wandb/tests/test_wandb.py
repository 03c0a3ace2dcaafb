"""Offline runs are read back from the file that ``wandb sync`` would send."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError, PluginError
from rlhf_plugin_wandb.config import WandbConfig
from tests.waiting import wait_for

BLOCK = 32768
KEY = "0123456789abcdef" * 2 + "01234567"


class Run(ComponentConfig):
    """Stands for the run's configuration."""

    name: str = "grpo"
    learning_rate: float = 0.5


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))


def context(run_dir: Path) -> BuildContext:
    fields: dict[str, Any] = {"run_dir": run_dir, "config": Run()}
    required = [
        f.name
        for f in dataclasses.fields(BuildContext)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and f.name not in fields
    ]
    return BuildContext(**dict.fromkeys(required), **fields)


def chunks(data: bytes) -> Iterator[bytes]:
    """Records of a ``.wandb`` file: LevelDB's log format, blocks of 32 KiB after a header of 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def records(run_dir: Path) -> list[list[Any]]:
    """The records of each offline run under a run folder, once wandb's own process has written the last one."""
    from wandb.proto.wandb_internal_pb2 import Record

    records_by_file = list[list[Any]]()

    def finished() -> bool:
        files = sorted(run_dir.glob("wandb/offline-run-*/*.wandb"))
        records_by_file[:] = [[Record.FromString(c) for c in chunks(f.read_bytes())] for f in files]
        return bool(records_by_file) and all(rows and rows[-1].HasField("exit") for rows in records_by_file)

    wait_for(finished, "wandb's own process finishing its files", 120)
    return records_by_file


def history(rows: list[Any]) -> list[dict[str, float]]:
    out: list[dict[str, float]] = []
    for row in rows:
        if row.HasField("history"):
            items = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in row.history.item}
            out.append({k: v for k, v in items.items() if k in {"_step", "loss", "reward/mean"}})
    return out


@pytest.mark.slow
def test_offline_run_holds_metrics_steps_and_configuration(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    tracker = WandbConfig(mode="offline", project="ours", run_name="first").build(context(tmp_path))
    tracker.log(1, {"loss": 2.0, "reward/mean": 0.25})
    tracker.log(2, {"loss": 1.0})
    tracker.close()
    tracker.close()
    (rows,) = records(tmp_path)
    assert history(rows) == [{"_step": 1, "loss": 2.0, "reward/mean": 0.25}, {"_step": 2, "loss": 1.0}]
    run = next(r.run for r in rows if r.HasField("run"))
    assert (run.project, run.display_name) == ("ours", "first")
    settings = {u.key: json.loads(u.value_json) for u in run.config.update}
    assert settings["learning_rate"] == 0.5


@pytest.mark.slow
def test_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for step in (1, 2):
        tracker = WandbConfig(mode="offline").build(context(tmp_path))
        tracker.log(step, {"loss": 1.0})
        tracker.close()
    ids = {r.run.run_id for rows in records(tmp_path) for r in rows if r.HasField("run")}
    assert ids == {(tmp_path / "wandb_run_id").read_text()}


@pytest.mark.slow
def test_key_never_reaches_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    tracker = WandbConfig(mode="offline").build(context(tmp_path))
    tracker.log(1, {"loss": 1.0})
    tracker.close()
    written = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert written
    assert not [f for f in written if KEY.encode() in f.read_bytes()]


def test_there_is_no_setting_for_the_key() -> None:
    with pytest.raises(ValidationError, match="api_key"):
        WandbConfig.model_validate({"api_key": KEY})


def test_online_without_a_key_is_refused_before_anything_starts(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    with pytest.raises(ConfigError, match=r"(?s)WANDB_API_KEY.*mode: offline"):
        WandbConfig().preflight(context(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_missing_package_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"pip install 'rlhf-plugin-wandb\[wandb\]'"):
        WandbConfig(mode="offline").build(context(tmp_path))


def test_config_imports_neither_wandb_nor_torch() -> None:
    import subprocess
    import sys

    code = "import sys, rlhf_plugin_wandb.config; sys.exit(bool({'wandb', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
