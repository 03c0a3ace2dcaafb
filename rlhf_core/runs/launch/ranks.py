"""The processes of a multi-process run: started together, stopped together, heard by the one that started them.

``python -m rlhf_core.runs.launch.ranks COMMAND...`` is the launcher: torchrun or ``accelerate launch`` in this process,
without their traceback about a failed child, ended when whoever started it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.runs.run_dir import RunDir
from rlhf_core.types.errors import OtherRankFailed, RlhfError, error_text


def resume_command(run_dir: Path) -> str:
    """What to do to resume a run that no other launcher started, for messages."""
    return f"go on with: rlhf train --resume {run_dir}"


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
        hint = resume_command(run_dir)
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
    text = str(error) if clear else error_text(error)
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
    signalled = [rank for rank, f in failures.items() if f.exitcode < 0 and f.exitcode != -signal.SIGTERM]
    early = [rank for rank in signalled if failures[rank].timestamp < reported + TORCHRUN_GRACE_S]
    return next((rank for rank in early if not (folder / f"rank-{rank}.json").exists()), None)


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
