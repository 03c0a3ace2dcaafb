"""What is compared on every rank before a model loads; each problem names the rank, its machine and what to set."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config import UserError
from rlhf_core.config.plan import library_versions
from rlhf_core.data.atomic import TEMPORARY
from rlhf_core.runs.launch.resume import differences

if TYPE_CHECKING:
    from rlhf_core.config.run import RunConfig

TOKEN = f"{TEMPORARY}token"
"""File that rank 0 writes into the run directory for as long as the others look for it."""
SHARED_S = 10.0
"""A network file system may show a new file late."""
MAX_ROWS = 4


def check_versions(planned: Mapping[str, str], rank_name: str) -> None:
    """Compare the libraries here with the plan's."""
    here = library_versions()
    rows = [f"{k} {here.get(k)} (rank 0 has {planned.get(k)})" for k in planned if here.get(k) != planned.get(k)]
    if rows:
        raise UserError(
            f"{rank_name} has different versions: {', '.join(rows)}", fix="install the same packages on every machine"
        )


def check_same_config(mine: Mapping[str, Any], planned: Mapping[str, Any], rank_name: str) -> None:
    """Compare what this rank's command line says with the plan."""
    rows = [
        f"{key}: {new!r} (rank 0 has {old!r})"
        for key, old, new in differences(planned, mine)
        if not (new is None and key.endswith("revision"))  # rank 0 alone asks the hub for the commit
    ]
    if rows:
        more = [f"and {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else []
        raise UserError(
            f"{rank_name} was started with a different configuration: {', '.join([*rows[:MAX_ROWS], *more])}",
            fix="give every rank the same command line and the same files",
        )


def check_shared(run_dir: Path, token: str, rank_0_dir: str, rank_name: str) -> None:
    """Look for rank 0's token in the run directory."""
    ends = time.monotonic() + SHARED_S
    while True:
        with contextlib.suppress(OSError):
            if (run_dir / TOKEN).read_text() == token:
                return
        if time.monotonic() > ends:
            raise UserError(
                f"{rank_name} has another run directory: '{run_dir}' there is not rank 0's '{rank_0_dir}'",
                why=f"the file that rank 0 wrote into it did not appear within {SHARED_S:g} s",
                fix="--run-dir on a file system that all machines share, the same on every rank",
            )
        time.sleep(0.1)


def check_disk(folder: Path, needed: int, rank_name: str) -> None:
    """Compare free disk space with what a checkpoint takes at least."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{rank_name} has too little disk space for a checkpoint: "
            f"it needs at least {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free",
            where=str(folder),
            fix="free some space or choose another --run-dir; trainer.keep_checkpoints limits how many are kept",
        )


def checkpoint_bytes(config: RunConfig) -> int:
    """Least bytes of a checkpoint: the weights, and AdamW's two moments of all if all are trained; 0 if unknown."""
    from rlhf_plugin_preflight.file_sizes import weight_file_bytes

    weights = weight_file_bytes(config.model.path) or 0
    trained_whole = config.model.lora is None and getattr(config.trainer, "train_trunk", "full") == "full"
    return weights * (3 if trained_whole else 0)
