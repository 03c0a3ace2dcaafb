"""Two torchruns as two machines, on loopback, and two processes as `srun` starts them: one run, or one message."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli.options import open_plugins
from rlhf_core.config.load import resolve
from rlhf_core.distributed.config import AutoStrategyConfig
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.plugins.context import BuildContext
from rlhf_core.runs.launch.run import plan_run, run_plan
from rlhf_core.types.errors import UserError
from tests.fork_server import heed_ctrl_c
from tests.waiting import wait_for

from .test_launch import logged

TRAIN = (
    *("-m", "rlhf_core.cli.main", "train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic"),
    *("--set", "threads=1", "--set", "reward.workers=1", "--set", "trainer.rollout_batch_size=16"),
    *("--set", "trainer.eval_samples=4", "--set", "dataset.limit=64"),
)
STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
"""What srun sets for each of two tasks, beside their numbers."""
DIES_S = 60
"""Deadline within which the other machine's ranks and launcher have ended; the collective's own is shorter."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def node(rank: int, port: int, ranks: int = 1) -> list[str]:
    """torchrun on one of two machines."""
    machines = ["--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", str(ranks)]
    where = ["--rdzv-backend", "c10d", "--rdzv-id", "one", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    return ["-m", "torch.distributed.run", *machines, *where]


@contextmanager
def started(
    tmp_path: Path, commands: Sequence[Sequence[str]], variables: Sequence[Mapping[str, str]] = ({}, {})
) -> Iterator[list[subprocess.Popen[str]]]:
    """Two Python processes, each with its terminal and its session; whatever is left of them is killed."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "RLHF_LAUNCH_TIMEOUT_S": "90"}
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed_ctrl_c,
            env={**environ, **extra},
        )
        for command, extra in zip(commands, variables)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            kill_machine(process)
            process.communicate()


def kill_machine(process: subprocess.Popen[str]) -> None:
    """End everything of one torchrun, which puts each rank into a session of its own, at once."""
    for pid in (*children(process.pid), process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.mark.slow
def test_two_machines_are_one_run(tmp_path: Path) -> None:
    port, options = free_port(), (*TRAIN, "--set", "trainer.steps=1", "--run-dir", "runs/one")
    with started(tmp_path, [[*node(rank, port), *options] for rank in (0, 1)]) as machines:
        ends = [(*machine.communicate(timeout=240), machine.returncode) for machine in machines]
    assert [code for _, _, code in ends] == [0, 0], ends
    assert sum("completed: 1 step" in out for out, _, _ in ends) == 1, "rank 0 alone speaks"
    run = tmp_path / "runs" / "one"
    assert json.loads((run / "plan.json").read_text())["world_size"] == 2
    assert json.loads((run / "summary.json").read_text())["status"] == "completed"
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["one"]


@pytest.mark.slow
@pytest.mark.long  # the comparison and its messages: test_rendezvous.py
def test_another_run_directory_is_refused(tmp_path: Path) -> None:
    port, options = free_port(), (*TRAIN, "--set", "trainer.rollout_batch_size=32")
    with started(tmp_path, [[*node(r, port, 2), *options, "--run-dir", f"runs/{r}"] for r in (0, 1)]) as machines:
        ends = [(*machine.communicate(timeout=240), machine.returncode) for machine in machines]
    assert all(code != 0 for *_, code in ends)  # torchrun's own code is 1
    for _, err, _ in ends:
        assert err.count("error: ") == 1, err
        assert "has another run directory" in err
        assert "exitcode  : 2" in err or "exitcode: 2" in err, "of the rank, as torchrun reports it"
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_machine_that_dies_ends_the_other(tmp_path: Path) -> None:
    port, options = free_port(), (*TRAIN, "--set", "trainer.steps=500", "--run-dir", "runs/one")
    options = (*options, "--set", "strategy.timeout_s=10")
    run = tmp_path / "runs" / "one"
    with started(tmp_path, [[*node(rank, port), *options] for rank in (0, 1)]) as machines:
        wait_for(lambda: logged(run, '"step": 2'), "second step", 200)
        ranks = {m: [pid for pid in children(m.pid) if rank_of(pid) is not None] for m in machines}
        dies, stays = sorted(machines, key=lambda m: rank_of(ranks[m][0]) or 0, reverse=True)
        kill_machine(dies)
        _, err = stays.communicate(timeout=DIES_S)
        assert stays.returncode != 0
        assert err.count("error: ") == 1, err
        assert "for rank 1 in step " in err or "for the others in step " in err
        assert not any(Path(f"/proc/{pid}").exists() for pid in ranks[stays])
    assert json.loads((run / "failure.json").read_text())["status"] == "failed"


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_on_one_machine_saves_and_ends_all(tmp_path: Path) -> None:
    port, options = free_port(), (*TRAIN, "--set", "trainer.steps=500", "--run-dir", "runs/one")
    run = tmp_path / "runs" / "one"
    commands = [[*node(r, port), *options] for r in (0, 1)]
    with started(tmp_path, commands) as machines:
        wait_for(lambda: logged(run, '"step": 2'), "second step", 200)
        machines[1].send_signal(signal.SIGINT)
        errors = [machine.communicate(timeout=DIES_S)[1] for machine in machines]
    for err in errors:
        assert err.count("error: stopped by Ctrl-C after step ") == 1, err
        assert "go on: start it with the same launcher, 2 processes, adding --resume " in err
        assert "runs/one" in err.split("adding --resume ")[1]
    assert json.loads((run / "failure.json").read_text())["status"] == "interrupted"
    assert len([*(run / "checkpoints").iterdir()]) == 1


def rank_of(pid: int) -> int | None:
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return next((int(v.removeprefix("RANK=")) for v in variables if v.startswith("RANK=")), None)


@pytest.mark.slow
def test_srun(tmp_path: Path) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    tasks = [{**address, **STEP, "SLURM_PROCID": str(rank), "SLURM_LOCALID": "0"} for rank in (0, 1)]
    with started(tmp_path, [[*TRAIN, "--set", "trainer.steps=1"]] * 2, tasks) as processes:
        ends = [(*process.communicate(timeout=240), process.returncode) for process in processes]
    assert [code for _, _, code in ends] == [0, 0], ends
    assert "completed: 1 step" in ends[0][0]
    assert ends[1][0] == "", "rank 0 alone speaks"
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "plan.json").read_text())["world_size"] == 2


@pytest.mark.long
@pytest.mark.slow
def test_ranks_that_cannot_speak_to_each_other(tmp_path: Path) -> None:
    options = ("--nproc", "2", "--run-dir", "runs/one")
    with started(tmp_path, [[*TRAIN, *options]], [{"GLOO_SOCKET_IFNAME": "none0"}]) as (process,):
        _, err = process.communicate(timeout=240)
    assert process.returncode == 2, err
    assert err.count("error: ") == 1
    assert f" on {socket.gethostname()}: joining 2 ranks failed" in err
    assert "none0" in err
    assert "GLOO_SOCKET_IFNAME" in err
    assert not (tmp_path / "runs").exists()


class Alone(LocalStrategy):
    """One of two ranks that do not add to each other."""

    world_size = 2

    def sum_over_ranks(self, values: Sequence[float]) -> list[float]:
        return list(values)


class AloneConfig(AutoStrategyConfig):
    """Builds it."""

    def build(self, ctx: BuildContext) -> Any:
        return Alone()


def test_an_all_reduce_whose_sum_is_wrong_ends_the_run_before_its_model_is_built(tmp_path: Path) -> None:
    registry, hooks = open_plugins()
    sections = {
        "trainer": {"name": "grpo"},
        "reward": {"name": "verifier"},
        "dataset": {"name": "pocket", "subset": "arithmetic"},
    }
    config = resolve(registry, sugar={**sections, "model": {"path": "no such model"}})
    plan = plan_run(registry, hooks, config, 2)
    config = config.model_copy(update={"strategy": AloneConfig()})
    with pytest.raises(UserError, match=r"rank 0 on .*: the numbers of 2 ranks add up to 1, not to 3"):
        run_plan(plan, config, registry, hooks, tmp_path / "run", resume=False)


@pytest.mark.long
@pytest.mark.slow
def test_a_task_that_never_arrives(tmp_path: Path) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RLHF_LAUNCH_TIMEOUT_S": "2"}
    task = {**address, **STEP, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    with started(tmp_path, [TRAIN], [task]) as (process,):
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert err.count("error: ") == 1
    assert "waited 2 s for the other ranks to check the plan: rank 1 never arrived" in err
    assert not (tmp_path / "runs").exists()
