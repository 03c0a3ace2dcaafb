"""Which of several processes this one is, as torchrun, ``accelerate launch`` or ``srun`` tells it."""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlhf_core.config import UserError
from rlhf_core.runs.launch.process_end import die_with_parent

LAUNCH_TIMEOUT = "RLHF_LAUNCH_TIMEOUT_S"
"""Variable with the seconds that ranks wait for each other before the run begins, the same on every rank."""
TIMEOUT_S = 300.0
FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Slurm gives ids from here on, or negative ones, to a batch script and to salloc's shell: no tasks of srun."""
IGNORED: Mapping[str, str] = tomllib.loads(Path(__file__).with_name("accelerate.toml").read_text())
"""What accelerate's file may ask for -> the run's own setting."""
SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
"""Variables in which a launcher says how many processes it was asked for."""
FIRST_HOST = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500'


@dataclass(frozen=True)
class RankInfo:
    """One of several processes. Example: ``RankInfo(rank=9, world_size=16, local_rank=1, launcher="srun")``"""

    rank: int
    world_size: int
    local_rank: int
    launcher: Literal["torchrun", "srun"]
    """``accelerate launch`` is torchrun with a file of settings."""
    timeout_s: float = TIMEOUT_S

    @property
    def speaks(self) -> bool:
        """Whether an error that all ranks share is printed here: once per terminal."""
        return self.rank == 0 or (self.local_rank == 0 and self.launcher == "torchrun")

    def resume_hint(self, run_dir: Path) -> str:
        """What to do to go on with a run: ``rlhf train --resume`` alone would start all ranks on one machine."""
        return f"go on: start it with the same launcher, {self.world_size} processes, adding --resume {run_dir}"

    @property
    def label(self) -> str:
        """Example: ``rank 9 on node-b``"""
        return f"rank {self.rank} on {socket.gethostname()}"


def started_rank(environ: MutableMapping[str, str] = os.environ) -> RankInfo | None:
    """This process among those that a launcher started; None where it is the only one.

    What ``srun`` says is written down as torchrun says it, for the libraries that read it there.
    """
    _refuse_what_is_ignored(environ)
    if "RANK" in environ:
        launcher, names = "torchrun", ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        environ.setdefault("LOCAL_RANK", environ.get("SLURM_LOCALID", "0"))  # for libraries that take no launch without
    elif "SLURM_PROCID" in environ and _is_srun_task(environ):
        launcher, names = "srun", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    else:
        _refuse_missing_ranks(environ)
        return None
    rank, world_size, local_rank = (_number(environ, name, default) for name, default in zip(names, ("0", "1", "0")))
    if rank >= world_size:
        raise UserError(
            f"{names[0]}={rank}, but there are only {world_size} ranks", where="environment", fix=f"check {names[1]}"
        )
    if world_size == 1:
        return None
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environ]:
        raise UserError(
            f"{launcher} started {world_size} processes, and {' and '.join(missing)} is not set",
            where=f"environment of rank {rank} on {socket.gethostname()}",
            why="the ranks find each other at that address, which is rank 0's machine",
            fix=FIRST_HOST,
        )
    if launcher == "srun":
        one_gpu = len(environ.get("CUDA_VISIBLE_DEVICES", ",").split(",")) == 1  # --gpus-per-task
        device = 0 if one_gpu else local_rank
        environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(device))
    return RankInfo(rank, world_size, local_rank, launcher, _timeout(environ))


def end_with_launcher(rank: RankInfo) -> None:
    """End this rank at once when torchrun is killed and so cannot end it (Linux); other launchers end their own."""
    if rank.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()


def _is_srun_task(environ: MutableMapping[str, str]) -> bool:
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < FIRST_SPECIAL_STEP


def _number(environ: MutableMapping[str, str], name: str, default: str) -> int:
    text = environ.get(name, default)
    if not text.isdigit():
        raise UserError(f"{name}='{text}' is not a number", where="environment", fix="set it as the launcher does")
    return int(text)


def _timeout(environ: MutableMapping[str, str]) -> float:
    text = environ.get(LAUNCH_TIMEOUT, str(TIMEOUT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UserError(
            f"{LAUNCH_TIMEOUT}='{text}' is not a number of seconds", where="environment", fix="for example 300"
        )
    return seconds


def _refuse_what_is_ignored(environ: Mapping[str, str]) -> None:
    """Settings of accelerate's file that would not arrive: the run has its own, which its plan records."""
    for name, instead in IGNORED.items():
        if (value := environ.get(f"ACCELERATE_{name}", "no").lower()) not in ("no", "0", "false"):
            raise UserError(
                f"accelerate's configuration sets {name.lower()}={value}, which rlhf does not take from there",
                where=f"ACCELERATE_{name}",
                fix=f"use configs/accelerate/*.yaml, or take it out; {instead}",
            )


def _refuse_missing_ranks(environ: Mapping[str, str]) -> None:
    """A launcher was asked for several processes, and this one is told that it is alone."""
    launcher, size = next(((name, environ[name]) for name in SIZES if environ.get(name, "1") != "1"), ("", ""))
    if "ACCELERATE_MIXED_PRECISION" in environ and "MASTER_PORT" in environ:  # it writes no number down
        command = Path(f"/proc/{os.getppid()}/cmdline")
        number = re.search(r"--num_processes[=\0](\d+)", command.read_text() if command.is_file() else "")
        launcher, size = "accelerate launch", number.group(1) if number else "several"
    if launcher:
        raise UserError(
            f"{launcher}: asked for {size} processes, found 1",
            where="environment, which has no RANK",
            why="accelerate starts one process with --cpu, and mpirun does not say which rank is which",
            fix="rlhf train --nproc N without a launcher, torchrun --nproc_per_node N, or accelerate without --cpu",
        )
