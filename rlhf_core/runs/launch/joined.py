"""A run whose ranks torchrun, ``accelerate launch`` or ``srun`` started: rank 0 plans it, the others take its plan."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config.plan import Plan, library_versions, reload
from rlhf_core.plugins.registry import Registry
from rlhf_core.runs.launch import rank_checks as checks
from rlhf_core.runs.launch.process_end import hard_exit
from rlhf_core.runs.launch.ranks import LAUNCH_TIMEOUT, RankInfo
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.types.errors import RlhfError, RunDirError, UserError, disk_error

if TYPE_CHECKING:
    from rlhf_core.config.run import RunConfig


POLL_S, BEAT_S = 0.05, 1.0
SEEN_S = 10.0
"""How long a rank that ends waits for the others to have read why; the store may end with it."""
ARRIVE_S = 60.0
"""How long rank 0 waits, where it ends early, for ranks that are still loading their libraries."""
AT_WORK_S = 3600.0
"""Longest wait for a rank that says that it is at work, and nothing else."""


class LostRanks(UserError):
    """The store of the launch is gone."""


class Rendezvous:
    """The ranks of one launch. Every wait has a deadline, and names the rank that was awaited.

    Args:
        me: this rank.
    """

    def __init__(self, me: RankInfo) -> None:
        import torch.distributed as dist

        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        serves = me.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # else torchrun does
        try:
            store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
                host,
                int(port),
                is_master=serves,
                timeout=timedelta(seconds=me.timeout_s),
                wait_for_workers=False,
                multi_tenant=True,  # accelerate opens it again, in the same process
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"{me.place} cannot {'listen' if serves else 'reach the other ranks'} at {host}:{port}",
                why=str(error).splitlines()[0],
                fix=("" if serves else "rank 0 may have ended: look at its message first; ")
                + "MASTER_ADDR is rank 0's machine, as the others reach it, and MASTER_PORT a free port there; "
                f"{LAUNCH_TIMEOUT} is the deadline ({me.timeout_s:g} s)",
            ) from error
        self.me = me
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store = dist.PrefixStore(f"rlhf/launch/{attempt}", store)  # pyright: ignore[reportPrivateImportUsage]
        self.put(f"arrived/{me.rank}", {"host": socket.gethostname(), "pid": os.getpid()})

    def put(self, key: str, value: Any) -> None:
        """Let every rank read a plain value.

        Raises:
            LostRanks: the store is gone.
        """
        with self._connected():
            self.store.set(key, json.dumps(value))

    def get(self, key: str, rank: int, what: str, alive: Callable[[], object] | None = None) -> Any:
        """Wait for what a rank says.

        Args:
            key: of its value.
            rank: that says it.
            what: is awaited, for the message.
            alive: changes while that rank is at work; the deadline then counts from the last change, for an hour.

        Raises:
            UserError: it did not say it in time, or the store is gone.
        """
        began, beat = time.monotonic(), None
        ends, latest = began + self.me.timeout_s, began + max(AT_WORK_S, self.me.timeout_s)
        while not self._there(key):
            if alive is not None and (now := alive()) != beat:
                ends, beat = min(time.monotonic() + self.me.timeout_s, latest), now
            if time.monotonic() > ends:
                raise self._late([rank], what, time.monotonic() - began, at_work=ends == latest)
            time.sleep(POLL_S)
        return self._read(key)

    def get_all(self, name: str, what: str) -> Mapping[int, Any]:
        """Wait for what every other rank says under ``NAME/RANK``, by one deadline.

        Raises:
            UserError: names every rank that did not say it in time.
        """
        missing, rows = [r for r in range(self.me.world_size) if r != self.me.rank], dict[int, Any]()
        ends = time.monotonic() + self.me.timeout_s
        while missing:
            for rank in [r for r in missing if self._there(f"{name}/{r}")]:
                rows[rank] = self._read(f"{name}/{rank}")
                missing.remove(rank)
            if missing and time.monotonic() > ends:
                raise self._late(missing, what, self.me.timeout_s)
            time.sleep(POLL_S if missing else 0)
        return rows

    def beat(self) -> object:
        """Changes while rank 0 is at work."""
        return self._read("beat") if self._there("beat") else None

    @contextlib.contextmanager
    def beating(self) -> Iterator[threading.Event]:
        """Say that this rank is at work, however long it takes, until the event is set."""
        over = threading.Event()

        def run() -> None:
            count = 0
            with contextlib.suppress(LostRanks):  # the store is gone; whoever waits for it says so
                while not over.wait(BEAT_S if count else 0.0):
                    count += 1
                    self.put("beat", count)

        thread = threading.Thread(target=run, name="launch-beat", daemon=True)
        thread.start()
        try:
            yield over
        finally:
            over.set()
            thread.join(BEAT_S)

    def wait_until_seen(self, name: str, *, absent_too: bool = False) -> None:
        """Give the other ranks some time to have read something.

        Args:
            name: of what each says when it has.
            absent_too: wait also for those that have not arrived, and longer.
        """
        others = [r for r in range(self.me.world_size) if r != self.me.rank]
        ends = time.monotonic() + (min(ARRIVE_S, self.me.timeout_s) if absent_too else SEEN_S)
        with contextlib.suppress(LostRanks):
            awaited = [r for r in others if absent_too or self._there(f"arrived/{r}")]
            while time.monotonic() < ends and not all(self._there(f"{name}/{r}") for r in awaited):
                time.sleep(POLL_S)

    def host(self, rank: int) -> str:
        """Example: ``rank 3 on node-b``"""
        there = self._there(f"arrived/{rank}")
        return f"rank {rank} on {self._read(f'arrived/{rank}')['host']}" if there else f"rank {rank}"

    def _there(self, key: str) -> bool:
        with self._connected():
            return bool(self.store.check([key]))

    def _read(self, key: str) -> Any:
        with self._connected():
            return json.loads(self.store.get(key))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LostRanks(
                f"{self.me.place} lost the other ranks before the run began",
                where=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
                why=str(error).splitlines()[0],
                fix="look at the messages of rank 0's machine",
            ) from error

    def _late(self, ranks: list[int], what: str, seconds: float, *, at_work: bool = False) -> UserError:
        absent = [r for r in ranks if not self._there(f"arrived/{r}")]
        late = [r for r in ranks if r not in absent]
        rows = [f"rank {r} never arrived" for r in absent] + [
            f"{self.host(r)} {'was still at work' if at_work else 'arrived, then said nothing'}" for r in late
        ]
        return UserError(
            f"{self.me.place} waited {round(seconds, 1):g} s for {what}: {'; '.join(rows)}",
            where=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}, {self.me.world_size} ranks",
            fix="start the launcher on every machine, with the same address and number of processes; "
            f"{LAUNCH_TIMEOUT} is the deadline",
        )


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
    """Rank 0's side. The others wait for its word, however it ends.

    Args:
        me: this rank.
    """

    def __init__(self, me: RankInfo) -> None:
        self.me, self.rendezvous = me, Rendezvous(me)
        self._announced = False
        self._beating_over = threading.Event()

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """Tell the others why there is no run, if there is none."""
        with self.rendezvous.beating() as self._beating_over:
            try:
                yield
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
        """Give the plan to the other ranks, and wait until every one has said that it can run it.

        Raises:
            RanksRefused: what some cannot, each with its rank and machine.
            UserError: a rank did not come in time.
        """
        token = secrets.token_hex(16)
        path = run.path / checks.TOKEN
        checks.check_disk(run.path, checks.checkpoint_bytes(config), self.me.place)
        try:
            _write(path, token)
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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise disk_error(path, error) from error


@dataclass(frozen=True)
class PlanFromRankZero:
    """What another rank takes from rank 0: the plan, its configuration and the run's directory."""

    plan: Plan
    config: RunConfig
    run_dir: Path
    resume: bool


@dataclass(frozen=True)
class LaunchArgs:
    """What a rank's own command line says, and its machine's check, which rank 0's plan is compared with."""

    preflight: Callable[[RunConfig, int], None]
    """Checks the components' settings on this machine."""
    run_dir: Path | None = None
    """As the command line names it; None takes rank 0's."""
    resume: bool = False
    """Whether the command line resumes a run."""
    wanted: Callable[[], RunConfig] | None = None
    """The configuration that the command line asks for; None where it changes nothing."""


def take_plan(me: RankInfo, registry: Registry, own: LaunchArgs) -> PlanFromRankZero | None:
    """Wait for rank 0's plan, check on this machine whether it can be run, and wait for what the others say.

    Args:
        me: this rank.
        registry: of this process; frozen afterwards.
        own: what this rank was asked for.

    Returns:
        What to run; None where rank 0 has nothing to run, and all is well.

    Raises:
        RlhfError: rank 0 ended, or some rank cannot run the plan.
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
        taken = _check(word, me, registry, own)
    except UserError as error:
        problem = str(error) if me.place in str(error) else f"{me.place}: {error}"
    except Exception as error:
        problem = f"{me.place}: {type(error).__name__}: {error}"
    rendezvous.put(f"found/{me.rank}", problem)
    verdict = rendezvous.get(VERDICT, 0, "rank 0 to hear of every rank", rendezvous.beat)
    rendezvous.put(f"seen/{me.rank}", True)
    if verdict["end"] != 0:
        raise EndedByRank0(verdict["text"], verdict["end"])
    assert taken is not None, "no problem was found"
    return taken


def _check(word: Mapping[str, Any], me: RankInfo, registry: Registry, own: LaunchArgs) -> PlanFromRankZero:
    folder = Path(word["run_dir"]) if own.run_dir is None else own.run_dir.absolute()
    if own.resume != word["resume"]:
        mine, theirs = ("resumes", "starts") if own.resume else ("starts", "resumes")
        raise RunDirError(
            f"{me.place} {mine} a run, and rank 0 {theirs} one",
            fix="give every rank the same command line",
        )
    checks.check_shared(folder, word["token"], word["run_dir"], me.place)
    plan = Plan.read(folder / "plan.json")
    if plan.digest != word["digest"]:
        raise RunDirError(
            f"{me.place} read a plan that differs from rank 0's", where=str(folder / "plan.json"), fix="start again"
        )
    checks.check_versions(word["versions"], me.place)
    config = reload(registry, plan)
    if own.wanted is not None:
        checks.check_same_config(own.wanted().model_dump(mode="json"), config.model_dump(mode="json"), me.place)
    registry.freeze()
    own.preflight(config, plan.world_size)
    return PlanFromRankZero(plan, config, folder, own.resume)


def end_quietly(error: RlhfError, me: RankInfo) -> None:
    """End this rank without a message that another one prints in the same terminal; else return.

    It leaves after that one, or when its launcher ends it: a launcher ends all ranks once one has left.
    """
    if (isinstance(error, EndedByRank0) or error.exit_code == INTERRUPTED) and not me.speaks:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(SEEN_S)
        hard_exit(error.exit_code)
