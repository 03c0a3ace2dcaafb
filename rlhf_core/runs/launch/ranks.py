"""The processes of a multi-process run: started together, stopped together, heard by the one that started them.

``python -m rlhf_core.runs.launch.ranks COMMAND...`` is the launcher: torchrun or ``accelerate launch`` in this process,
without their traceback about a failed child, ended when whoever started it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlhf_core.runs.launch.process_end import die_with_parent
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.types.errors import OtherRankFailed, RlhfError, UserError

LAUNCH_TIMEOUT = "RLHF_LAUNCH_TIMEOUT_S"
"""Variable with the seconds that ranks wait for each other before the run begins, the same on every rank."""
TIMEOUT_S = 300.0
FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Slurm gives ids from here on, or negative ones, to a batch script and to salloc's shell: no tasks of srun."""
IGNORED = {
    "USE_FSDP": "--set strategy=fsdp",
    "USE_DEEPSPEED": "--set strategy=deepspeed",
    "USE_MEGATRON_LM": "--set strategy=fsdp",
    "USE_PARALLELISM_CONFIG": "--set strategy=fsdp",
    "MIXED_PRECISION": "--set trainer.precision=bf16",
    "DYNAMO_BACKEND": "a run compiles nothing",
}
"""What accelerate's file may ask for -> the run's own setting."""
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
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

    @property
    def place(self) -> str:
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


def how_to_go_on(run_dir: Path, started: RankInfo | None) -> str:
    """What to do to resume a run, for messages.

    Where another launcher ``started`` the ranks, ``rlhf train --resume`` would start all of them on one machine.

    Example:
        >>> how_to_go_on(Path("runs/grpo"), None)
        'go on with: rlhf train --resume runs/grpo'
        >>> how_to_go_on(Path("runs/grpo"), RankInfo(0, 16, 0, "srun"))  # doctest: +SKIP
        'go on: start it with the same launcher, 16 processes, adding --resume runs/grpo'
    """
    if started is None:
        return f"go on with: rlhf train --resume {run_dir}"
    return f"go on: start it with the same launcher, {started.world_size} processes, adding --resume {run_dir}"


def end_with_launcher(rank: RankInfo) -> None:
    """End this rank at once when torchrun is killed and so cannot end it (Linux); other launchers end their own."""
    if rank.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()


def world_size(nproc: int | None, rank: RankInfo | None) -> int | None:
    """Processes that were asked for with ``--nproc``, or that the launcher started; None if neither says."""
    if rank is None:
        return nproc
    if nproc not in (None, rank.world_size):
        raise UserError(
            f"--nproc {nproc}, but {rank.launcher} started {rank.world_size} processes",
            fix="leave --nproc out: it starts processes without a launcher",
        )
    return rank.world_size


def ranks_here(world_size: int, environ: Mapping[str, str] = os.environ) -> int:
    """How many of the ranks are on this machine, as the launcher says; all where none does.

    Example:
        >>> ranks_here(12, {"RANK": "0", "SLURM_STEP_TASKS_PER_NODE": "8,4"})
        8
    """
    if "LOCAL_WORLD_SIZE" in environ:
        return int(environ["LOCAL_WORLD_SIZE"])
    first = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", "")) if "RANK" in environ else None
    return int(first.group()) if first else world_size


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
    launcher, asked = next(((name, environ[name]) for name in SIZES if environ.get(name, "1") != "1"), ("", ""))
    if "ACCELERATE_MIXED_PRECISION" in environ and "MASTER_PORT" in environ:  # it writes no number down
        command = Path(f"/proc/{os.getppid()}/cmdline")
        number = re.search(r"--num_processes[=\0](\d+)", command.read_text() if command.is_file() else "")
        launcher, asked = "accelerate launch", number.group(1) if number else "several"
    if launcher:
        raise UserError(
            f"{launcher}: asked for {asked} processes, found 1",
            where="environment, which has no RANK",
            why="accelerate starts one process with --cpu, and mpirun does not say which rank is which",
            fix="rlhf train --nproc N without a launcher, torchrun --nproc_per_node N, or accelerate without --cpu",
        )


REPORTS = "RLHF_RANK_REPORTS"
"""Variable that names the folder in which a failing rank leaves its reason."""
TORCHRUN_GRACE_S = 25.0
"""Less than the time after which torchrun kills a rank that it has told to end."""
GRACE_S = 75.0
"""How long ranks may take to end after they were told to; torchrun kills them after 30 s and waits up to 30 s more."""


class RankFailed(RlhfError):
    """A rank failed; the message is the rank's own."""

    def __init__(self, code: int, report: dict[str, Any], run_dir: Path) -> None:
        self.exit_code = int(report.get("exit_code", 1))
        hint = how_to_go_on(run_dir, None)
        if report.get("clear"):
            super().__init__(report["text"])
        elif "text" in report:
            super().__init__(
                f"rank {report['rank']} failed: {report['text']}",
                where=str(run_dir),
                fix=f"its traceback is above; {hint}",
            )
        else:
            super().__init__(f"rank {report.get('rank', '?')} ended with {_ending(code)}", where=str(run_dir), fix=hint)


def _ending(code: int) -> str:
    if code <= 128:
        return f"code {code}"
    name = signal.Signals(code - 128).name if code - 128 in set(signal.Signals) else str(code - 128)
    return f"signal {name}" + (" (often: out of memory)" if name == "SIGKILL" else "")


def run_ranks(run: RunDir, nproc: int, flags: Sequence[str], cuda: bool) -> None:
    """Start the ranks, wait for them, and end them all when one fails or when this process is interrupted.

    ``accelerate launch --cpu --num_processes 2`` silently runs one process, hence torchrun without CUDA; every
    worker compares WORLD_SIZE with the plan. The first Ctrl-C asks the ranks to finish their step and save; before
    the first evaluation or step, and at the second Ctrl-C, they are ended at once.
    """
    accelerate = f"accelerate.commands.launch --num_processes {nproc} --num_machines 1 --mixed_precision no"
    several = " --multi_gpu" if nproc > 1 else ""
    torchrun = f"torch.distributed.run --standalone --nproc_per_node {nproc}"
    starter = f"{accelerate} --dynamo_backend no{several}" if cuda else torchrun
    launcher = [sys.executable, "-m", "rlhf_core.runs.launch.ranks", *starter.split()]
    command = [*launcher, "-m", "rlhf_core.cli.rank_main", str(run.path), *flags]
    threads = str(max(1, (os.cpu_count() or 1) // nproc))
    with tempfile.TemporaryDirectory(prefix="rlhf-ranks-") as reports:
        env = {"OMP_NUM_THREADS": threads, **os.environ, REPORTS: reports}
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, start_new_session=True)
        try:
            code = _wait(process, run)
        finally:
            _end(process)
        if code != 0:
            raise RankFailed(code, _first_report(Path(reports)), run.path)


def _wait(process: subprocess.Popen[bytes], run: RunDir) -> int:
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            if run.stop.exists() or not run.begun():
                raise
            run.stop.touch()
            print("\nstopping after this step (Ctrl-C again stops at once)", file=sys.stderr, flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()  # the launcher ends its ranks when it reads the end of its input
    try:
        process.wait(GRACE_S)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise


def report(error: BaseException) -> bool:
    """Leave why this rank failed where the process that started the ranks looks; False if nobody looks."""
    folder = os.environ.get(REPORTS)
    if not folder or not Path(folder).is_dir():
        return False
    rank = os.environ.get("RANK", "0")
    clear = isinstance(error, RlhfError)
    text = str(error) if clear else f"{type(error).__name__}: {error}"
    row = {
        "rank": rank,
        "clear": clear,
        "text": text,
        "time": time.time() + (GRACE_S if isinstance(error, OtherRankFailed) else 0.0),
        "exit_code": error.exit_code if isinstance(error, RlhfError) else 1,
    }
    with contextlib.suppress(OSError):
        _write(Path(folder), f"rank-{rank}.json", row)
    return True


def _write(folder: Path, name: str, row: Mapping[str, Any]) -> None:
    aside = folder / f"{name}.part"
    aside.write_text(json.dumps(row))
    os.replace(aside, folder / name)


def _first_report(folder: Path) -> dict[str, Any]:
    """The report of the rank that failed first; else the launcher's, which knows only the rank."""
    rows = [json.loads(p.read_text()) for p in folder.glob("*.json")]
    return min(rows, key=lambda row: row["time"], default={})


def _killed(failures: Mapping[int, Any], folder: Path) -> int | None:
    """The rank that was killed from outside, if any; torchrun's own SIGTERM, or SIGKILL 30 s later, are not that."""
    reported = float(_first_report(folder).get("time", float("inf")))
    silent = [(rank, f) for rank, f in failures.items() if not (folder / f"rank-{rank}.json").exists()]
    return next(
        (
            rank
            for rank, f in silent
            if f.exitcode < 0 and f.exitcode != -signal.SIGTERM and f.timestamp < reported + TORCHRUN_GRACE_S
        ),
        None,
    )


def _watch_starter() -> None:
    """End this launcher, and so its ranks, when the process at the other end of its input is gone."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Run the launcher that the arguments name; the exit code is that of the rank that failed first."""
    import logging

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    threading.Thread(target=_watch_starter, daemon=True).start()
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    module, sys.argv = sys.argv[1], sys.argv[1:]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ChildFailedError as error:
        # torchrun notes the failures in the order it saw them, then those of the ranks that it ended itself
        folder = Path(os.environ[REPORTS])
        killed = _killed(error.failures, folder)
        rank = next(iter(error.failures)) if killed is None else killed
        code = int(error.failures[rank].exitcode)
        # a rank that was killed could not report; what the others then complain of is not the reason
        _write(folder, "launcher.json", {"rank": rank, "time": float("inf") if killed is None else 0.0})
        return code if code > 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
