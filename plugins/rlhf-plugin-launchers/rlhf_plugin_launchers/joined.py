"""A run whose ranks torchrun, ``accelerate launch`` or ``srun`` started: rank 0 plans it, the others take its plan."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config import Registry, RlhfError, UserError
from rlhf_core.config.plan import Plan, library_versions, reload
from rlhf_core.data.atomic import write_text
from rlhf_core.runs.launch.process_end import hard_exit
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.types.errors import RunDirError
from rlhf_plugin_launchers import checks
from rlhf_plugin_launchers.rank import RankInfo
from rlhf_plugin_launchers.rendezvous import SEEN_S, LostRanks, Rendezvous

if TYPE_CHECKING:
    from rlhf_core.config.run import RunConfig


WORD, VERDICT = "word", "verdict"
"""Keys of what rank 0 says: first the plan, or why there is none; then whether every rank can run it."""
INTERRUPTED = 130
"""Exit code of a run that Ctrl-C or SIGTERM ended; every rank ends with it, and the same message."""


class RanksRefused(UserError):
    """What several ranks cannot run, in one message."""


class EndedByRank0(RlhfError):
    """Rank 0 ended before the run began; the message and the exit code are its own."""

    def __init__(self, text: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(text)


class Rank0:
    """Rank 0's side. The others wait for its word, however it ends."""

    def __init__(self, me: RankInfo) -> None:
        self.me, self.rendezvous, self.resume_hint = me, Rendezvous(me), me.resume_hint
        self._announced = False
        self._beating_over = threading.Event()

    @contextlib.contextmanager
    def leading(self) -> Generator[Rank0, None, None]:
        """Tell the others why there is no run, if there is none."""
        with self.rendezvous.beating() as self._beating_over:
            try:
                yield self
            except BaseException as error:
                self._end(*_reason(error), absent_too=isinstance(error, Exception))
                raise
            self._end("", 0)

    def _end(self, text: str, code: int, *, absent_too: bool = True) -> None:
        if self._announced:
            return
        with contextlib.suppress(LostRanks):
            self.rendezvous.put(WORD, {"end": code, "text": text})
            self.rendezvous.wait_until_seen("seen", absent_too=absent_too)

    def agree(self, plan: Plan, config: RunConfig, run: RunDir, *, resume: bool) -> None:
        """Give the plan to the other ranks, and wait until every one has said that it can run it."""
        token = secrets.token_hex(16)
        path = run.path / checks.TOKEN
        checks.check_disk(run.path, checks.checkpoint_bytes(config), self.me.label)
        try:
            write_text(path, token)
            self.rendezvous.put(
                WORD,
                {
                    "digest": plan.digest,
                    "versions": library_versions(),
                    "run_dir": str(run.path.absolute()),
                    "token": token,
                    "resume": resume,
                },
            )
            self._announced = True
            try:
                rows = self.rendezvous.get_all("found", "the other ranks to check the plan")
            except BaseException as error:
                with contextlib.suppress(LostRanks):
                    self._verdict(*_reason(error))
                raise
            problems = [str(text) for _, text in sorted(rows.items()) if text is not None]
            self._verdict("\n".join(problems), RanksRefused.exit_code if problems else 0)
        finally:
            path.unlink(missing_ok=True)
        if problems:
            raise RanksRefused("\n".join(problems))

    def _verdict(self, text: str, code: int) -> None:
        self.rendezvous.put(VERDICT, {"end": code, "text": text})
        self._beating_over.set()
        self.rendezvous.wait_until_seen("seen")  # the store may end with this process


def _reason(error: BaseException) -> tuple[str, int]:
    """What the other ranks are told, and their exit code."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C or SIGTERM before the first step", INTERRUPTED
    return str(error) or type(error).__name__, getattr(error, "exit_code", 1)


def take_plan(
    me: RankInfo,
    registry: Registry,
    preflight: Callable[[RunConfig, int], None],
    run_dir: Path | None = None,
    wanted: Callable[[], RunConfig] | None = None,
    *,
    resume: bool = False,
) -> tuple[Plan, RunConfig, Path] | None:
    """Wait for rank 0's plan, check on this machine whether it can be run, and wait for what the others say.

    Returns the plan, its configuration and the run's directory; None where rank 0 has nothing to run, and all is well.
    The registry is frozen afterwards. ``run_dir`` (None takes rank 0's), ``resume`` and the configuration that is
    ``wanted`` are what this rank's own command line says.
    """
    rendezvous = Rendezvous(me)
    word = rendezvous.get(WORD, 0, "rank 0's plan", rendezvous.beat)
    if "end" in word:
        rendezvous.put(f"seen/{me.rank}", True)
        if word["end"] == 0:
            return None
        raise EndedByRank0(f"rank 0 ended: {word['text']}", word["end"])
    taken, problem = None, None
    try:
        taken = _check(word, me, registry, preflight, run_dir, wanted, resume)
    except UserError as error:
        problem = str(error) if me.label in str(error) else f"{me.label}: {error}"
    except Exception as error:
        problem = f"{me.label}: {type(error).__name__}: {error}"
    rendezvous.put(f"found/{me.rank}", problem)
    verdict = rendezvous.get(VERDICT, 0, "rank 0 to hear of every rank", rendezvous.beat)
    rendezvous.put(f"seen/{me.rank}", True)
    if verdict["end"] != 0:
        raise EndedByRank0(verdict["text"], verdict["end"])
    assert taken is not None, "no problem was found"
    return taken


def _check(
    word: Mapping[str, Any],
    me: RankInfo,
    registry: Registry,
    preflight: Callable[[RunConfig, int], None],
    run_dir: Path | None,
    wanted: Callable[[], RunConfig] | None,
    resume: bool,
) -> tuple[Plan, RunConfig, Path]:
    folder = Path(word["run_dir"]) if run_dir is None else run_dir.absolute()
    if resume != word["resume"]:
        mine, theirs = ("resumes", "starts") if resume else ("starts", "resumes")
        raise RunDirError(
            f"{me.label} {mine} a run, and rank 0 {theirs} one",
            fix="give every rank the same command line",
        )
    checks.check_shared(folder, word["token"], word["run_dir"], me.label)
    plan = Plan.read(folder / "plan.json")
    if plan.digest != word["digest"]:
        raise RunDirError(
            f"{me.label} read a plan that differs from rank 0's", where=str(folder / "plan.json"), fix="start again"
        )
    checks.check_versions(word["versions"], me.label)
    config = reload(registry, plan)
    if wanted is not None:
        checks.check_same_config(wanted().model_dump(mode="json"), config.model_dump(mode="json"), me.label)
    registry.freeze()
    preflight(config, plan.world_size)
    return plan, config, folder


def end_quietly(error: RlhfError, me: RankInfo) -> None:
    """End this rank without a message that another one prints in the same terminal; else return.

    It leaves after that one, or when its launcher ends it: a launcher ends all ranks once one has left.
    """
    if (isinstance(error, EndedByRank0) or error.exit_code == INTERRUPTED) and not me.speaks:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(SEEN_S)
        hard_exit(error.exit_code)
