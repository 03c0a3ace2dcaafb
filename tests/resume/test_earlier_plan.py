"""A run saved by earlier code is resumed although its components have moved to other modules since."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from rlhf_core.config.load import resolve
from rlhf_core.config.plan import Plan, make_plan, reload
from rlhf_core.plugins.component import Config
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.errors import PluginError

OLD_PLACES = {
    "verifier": "rlhf_core.former.config:VerifierRewardConfig",
    "numeric": "rlhf_core.former.config:NumericVerifierConfig",
    "grpo": "rlhf_plugin_grpo.old_config:GrpoConfig",
}


def moved(plan: Plan, **changes: str) -> Plan:
    """The plan as code would have written it whose components lay elsewhere."""
    rows = ({**row, "value": OLD_PLACES.get(row["name"], row["value"]), **changes} for row in plan.components)
    return replace(plan, components=tuple(rows))


def age(run: Path) -> None:
    """Make a finished run one that earlier code began and did not end."""
    plan = moved(Plan.read(run / "plan.json"))
    (run / "plan.json").write_text(json.dumps(plan.to_json()))
    assert "rlhf_core.former" in (run / "plan.json").read_text()
    shutil.rmtree(run / "final")


@pytest.fixture(scope="module")
def plan() -> Plan:
    registry = Registry(disabled=())
    settings = ["trainer.name=grpo", "reward.name=verifier", "dataset=pocket/arithmetic"]
    return make_plan(registry, resolve(registry, settings=settings), 1)


def test_components_that_moved_are_accepted_on_resume_and_said(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rlhf_core.config.plan"):
        config = reload(Registry(disabled=()), moved(plan), resume=True)
    assert config.model_dump(mode="json") == plan.config
    moved_to = "verifier 'numeric' was rlhf_core.former.config:NumericVerifierConfig, is rlhf_plugin_verifiers"
    assert moved_to in caplog.text


def test_a_worker_of_a_fresh_run_refuses_another_value(plan: Plan) -> None:
    reload(Registry(disabled=()), plan)
    with pytest.raises(PluginError, match="differs between the plan and this process"):
        reload(Registry(disabled=()), moved(plan))


def test_another_version_is_refused_on_resume_too(plan: Plan) -> None:
    with pytest.raises(PluginError, match="differs between the plan and this process"):
        reload(Registry(disabled=()), moved(plan, version="0.0.1"), resume=True)


class Slimmer(Config):
    retired: ClassVar[Mapping[str, Any]] = {"train_batch_size": None, "overlong": {"cache": 0.0, "weight": 1.0}}
    steps: int = 1


def test_settings_that_a_class_no_longer_has_are_read_at_their_default_and_no_other() -> None:
    plan = {"steps": 3, "train_batch_size": None, "overlong": {"cache": 0.0, "weight": 1.0}}
    assert Slimmer.model_validate(plan) == Slimmer(steps=3)
    with pytest.raises(ValidationError, match="train_batch_size"):
        Slimmer.model_validate({**plan, "train_batch_size": 8})


def test_a_run_with_a_verifier_goes_on(rlhf: Callable[..., Any], finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    before = json.loads((run / "summary.json").read_text())
    age(run)
    out = rlhf("train", "--resume", run, "--json")
    assert out.code == 0, out.err
    after = json.loads((run / "summary.json").read_text())
    assert (run / "final").is_dir()
    assert {**before, "seconds": 0} == {**after, "seconds": 0}


@pytest.mark.slow
@pytest.mark.long  # on one process: the test above
def test_a_run_on_two_processes_goes_on(quick: tuple[str, ...], tmp_path: Path) -> None:
    run, env = tmp_path / "run", {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlhf_core.cli.main"]
    for arguments in ([*quick, "--nproc", "2", "--run-dir", str(run)], ["train", "--resume", str(run)]):
        subprocess.run([*command, *arguments], env=env, check=True, timeout=250, capture_output=True)
        if "--nproc" in arguments:
            age(run)
    assert (run / "final").is_dir()
