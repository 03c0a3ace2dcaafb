"""A process that nothing joins to the other tasks of its Slurm job says that it trains alone."""

from __future__ import annotations

import pytest

from rlhf_core.runs.launch.launched import launched_rank

BATCH = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.mark.parametrize("disabled", ["", "rlhf-plugin-launchers"])
@pytest.mark.parametrize(
    ("started", "nproc", "says"),
    [
        ({"SLURM_NTASKS": "4"}, None, True),
        ({"SLURM_NTASKS": "4", **BATCH}, None, True),
        ({"SLURM_NTASKS": "4", **BATCH}, 4, False),
        ({"SLURM_NTASKS": "1", **BATCH}, None, False),
        ({}, None, False),
    ],
)
def test_a_process_that_trains_alone_in_a_job_of_several_tasks_says_so(
    started: dict[str, str],
    nproc: int | None,
    says: bool,
    disabled: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("RLHF_DISABLE_PLUGINS", disabled)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert launched_rank(nproc) is None
    assert caplog.text.count("4 tasks, and this process trains alone: start it with srun") == says
