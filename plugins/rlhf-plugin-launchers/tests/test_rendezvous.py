"""What ranks of another launcher compare before a model loads: a real store, two ranks in this process."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli.main import main
from rlhf_core.cli.options import open_plugins
from rlhf_core.config.load import resolve
from rlhf_core.config.plan import library_versions
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.distributed.peers import waiting
from rlhf_core.plugins.registry import Registry
from rlhf_core.runs.launch import process
from rlhf_core.runs.launch.launched import launched_rank
from rlhf_core.runs.launch.ranks import resume_command
from rlhf_core.runs.launch.resume import planned_resume
from rlhf_core.runs.launch.run import plan_run, preflight
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.types.errors import UserError
from rlhf_plugin_launchers import checks, joined
from rlhf_plugin_launchers import rank as rank_module
from rlhf_plugin_launchers import rendezvous as rendezvous_module
from rlhf_plugin_launchers.joined import EndedByRank0, Rank0, RanksRefused, take_plan
from rlhf_plugin_launchers.rank import RankInfo, end_with_launcher, started_rank
from rlhf_plugin_launchers.rendezvous import SEEN_S, LostRanks, Rendezvous

SUGAR = {
    "trainer": {"name": "grpo"},
    "reward": {"name": "verifier", "workers": 1},
    "dataset": {"name": "pocket", "subset": "arithmetic"},
}


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[RankInfo, RankInfo]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(checks, "SHARED_S", 0.3)
    rank_0 = RankInfo(0, 2, 0, "torchrun", timeout_s=20)
    return rank_0, replace(rank_0, rank=1)


def sugar(**settings: Any) -> dict[str, Any]:
    return {**SUGAR, "trainer": {"name": "grpo", **settings}}


def meet(
    two: tuple[RankInfo, RankInfo],
    run: RunDir,
    *,
    run_dir: Path | None = None,
    resume: bool = False,
    of_rank_1: Mapping[str, Any] = SUGAR,
) -> tuple[Any, Any]:
    """How both ranks end: what they return, or their error."""

    def one() -> Any:
        registry, _ = open_plugins(reports=False)
        wanted = partial(resolve, registry, sugar=dict(of_rank_1))
        checked = partial(preflight, registry)
        return take_plan(two[1], registry, checked, run_dir, wanted, resume=resume)

    def zero() -> None:
        registry, hooks = open_plugins()
        config = resolve(registry, sugar=dict(SUGAR))
        rank_0 = Rank0(two[0])
        with rank_0.leading():
            plan = plan_run(registry, hooks, config, 2)
            run.create(plan, {})
            rank_0.agree(plan, config, run, resume=False)

    def caught(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(caught, call) for call in (zero, one)]
        return ends[0].result(60), ends[1].result(60)


def test_a_run_of_another_launcher_says_to_use_it_again(two: tuple[RankInfo, RankInfo]) -> None:
    assert resume_command(Path("runs/one")) == "go on with: rlhf train --resume runs/one"
    assert two[1].resume_hint(Path("runs/one")) == (
        "go on: start it with the same launcher, 2 processes, adding --resume runs/one"
    )


def test_another_rank_takes_the_plan(two: tuple[RankInfo, RankInfo], tmp_path: Path) -> None:
    zero, one = meet(two, RunDir(tmp_path / "run"))
    assert zero is None
    assert isinstance(one, tuple), one
    plan, _, run_dir = one
    assert run_dir == tmp_path / "run"
    assert plan.to_json() == json.loads((tmp_path / "run" / "plan.json").read_text())
    assert not (tmp_path / "run" / checks.TOKEN).exists()


def test_other_directory_configuration_and_command(two: tuple[RankInfo, RankInfo], tmp_path: Path) -> None:
    me = f"rank 1 on {socket.gethostname()}"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"run_dir": tmp_path / "other"}, f"{me} has another run directory: '{tmp_path / 'other'}' there is not"),
        (
            {"of_rank_1": sugar(steps=7)},
            f"{me} was started with a different configuration: trainer.steps: 7 (rank 0 has",
        ),
        ({"resume": True}, f"{me} resumes a run, and rank 0 starts one"),
        ({"run_dir": None}, f"{me} has different versions: torch 1.0"),
    ]
    for number, (options, text) in enumerate(cases):
        with pytest.MonkeyPatch.context() as patch:
            if "versions" in text:
                patch.setattr(checks, "library_versions", lambda: {**library_versions(), "torch": "1.0"})
            patch.setenv("TORCHELASTIC_RESTART_COUNT", str(number))  # one store, as after torchrun's restart
            zero, one = meet(two, RunDir(tmp_path / f"run-{number}"), **options)
        assert isinstance(zero, RanksRefused), zero
        assert str(zero).startswith(text)
        assert zero.exit_code == one.exit_code == 2
        assert isinstance(one, EndedByRank0)
        assert str(one) == str(zero), "every node's terminal says the same"


def test_rank_0_says_why_there_is_no_run(two: tuple[RankInfo, RankInfo], tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.plan.write_text("{}")
    zero, one = meet(two, run)
    assert "already holds a run" in str(zero)
    assert isinstance(one, EndedByRank0)
    assert str(one) == f"rank 0 ended: {zero}"
    assert one.exit_code == zero.exit_code == 2


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("checkpoint_bytes", lambda config: 1 << 60, "has too little disk space"),
        ("TOKEN", "no folder/token", "cannot write"),
    ],
)
def test_rank_0_says_that_the_disk_is_full(
    two: tuple[RankInfo, RankInfo],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: Any,
    text: str,
) -> None:
    monkeypatch.setattr(checks, name, value)
    zero, one = meet(two, RunDir(tmp_path / "run"))
    assert text in str(zero)
    assert str(one) == f"rank 0 ended: {zero}"
    assert one.exit_code == zero.exit_code == 2


def test_a_rank_without_a_message_leaves_after_the_one_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Any]()
    monkeypatch.setattr(joined, "hard_exit", calls.append)
    monkeypatch.setattr(joined.time, "sleep", calls.append)
    error = EndedByRank0("rank 0 ended", 2)
    joined.end_quietly(error, RankInfo(1, 2, 0, "torchrun"))
    assert calls == [], "it speaks in its own terminal"
    joined.end_quietly(error, RankInfo(1, 2, 1, "torchrun"))
    assert calls == [SEEN_S, 2], "a launcher ends the others once one has left"


def test_rank_0_says_why_to_a_rank_that_arrives_later(
    two: tuple[RankInfo, RankInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, wait_until_seen = threading.Event(), Rendezvous.wait_until_seen

    def noted(self: Rendezvous, *args: Any, **options: Any) -> None:
        waits.set()
        wait_until_seen(self, *args, **options)

    monkeypatch.setattr(Rendezvous, "wait_until_seen", noted)

    def zero() -> None:
        rank_0 = Rank0(two[0])
        with pytest.raises(UserError, match="no such file"), rank_0.leading():
            raise UserError("no such file")

    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(zero)
        assert waits.wait(60), "its store would end with it"
        assert not end.done()
        with pytest.raises(EndedByRank0, match="rank 0 ended: no such file"):
            take_plan(two[1], Registry(), lambda *_: None)
        end.result(20)


def test_ctrl_c_at_rank_0_while_the_ranks_compare(
    two: tuple[RankInfo, RankInfo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_all = Rendezvous.get_all

    def interrupted(*args: Any) -> Any:
        get_all(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(Rendezvous, "get_all", interrupted)
    zero, one = meet(two, RunDir(tmp_path / "run"))
    assert isinstance(zero, KeyboardInterrupt)
    assert isinstance(one, EndedByRank0)
    assert (str(one), one.exit_code) == ("stopped by Ctrl-C or SIGTERM before the first step", 130)


def test_a_rank_that_is_at_work_for_ever(two: tuple[RankInfo, RankInfo], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_module, "AT_WORK_S", 0.4)
    rendezvous = Rendezvous(two[0])
    rendezvous.me = replace(two[0], timeout_s=0.2)  # of what is said, not of the connection
    rendezvous.put("arrived/1", {"host": "b"})
    with pytest.raises(UserError, match=r"waited 0.4 s for a plan: rank 1 on b was still at work"):
        rendezvous.get("plan", 1, "a plan", iter(range(1000)).__next__)


def test_a_store_that_is_gone(two: tuple[RankInfo, RankInfo]) -> None:
    class Gone:
        def set(self, *args: Any) -> None:
            raise RuntimeError("Broken pipe\nframes of C++")

        get = check = set

    rank_0 = Rank0(two[0])
    rank_0.rendezvous.store = Gone()  # pyright: ignore[reportAttributeAccessIssue]
    for call in (lambda: rank_0.rendezvous.put("word", 1), rank_0.rendezvous.beat):
        with pytest.raises(LostRanks, match=r"rank 0 on .* lost the other ranks before the run began") as caught:
            call()
        assert caught.value.why == "Broken pipe"
    with pytest.raises(UserError, match="no such file"), rank_0.leading():
        raise UserError("no such file")


def test_a_rank_that_never_arrives_is_named(two: tuple[RankInfo, RankInfo]) -> None:
    rendezvous = Rendezvous(replace(two[0], world_size=3))
    other = Rendezvous(replace(two[1], world_size=3))
    rendezvous.me = replace(rendezvous.me, timeout_s=0.5)
    with pytest.raises(UserError) as caught:
        rendezvous.get_all("found", "the other ranks to check the plan")
    text = str(caught.value)
    assert f"rank 0 on {socket.gethostname()} waited 0.5 s for the other ranks to check the plan" in text
    assert f"rank 1 on {socket.gethostname()} arrived, then said nothing" not in text.split("rank 2")[0]
    assert "rank 2 never arrived" in text
    assert f"rank 1 on {socket.gethostname()} arrived, then said nothing" in text
    assert caught.value.exit_code == 2
    del other


def test_nobody_at_the_address(two: tuple[RankInfo, RankInfo]) -> None:
    with pytest.raises(UserError, match=r"rank 1 on .* cannot reach the other ranks at 127.0.0.1") as caught:
        Rendezvous(replace(two[1], timeout_s=0.5))
    assert "rank 0 may have ended: look at its message first" in str(caught.value)


def test_versions_and_disk(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rank 3 on b has different versions: torch .* \(rank 0 has 1.0\)"):
        checks.check_versions({"torch": "1.0"}, "rank 3 on b")
    checks.check_disk(tmp_path, 1, "rank 0 on a")
    said = "rank 0 on a has too little disk space for a checkpoint: it needs at least 1,152,921,504,607 MB"
    with pytest.raises(UserError, match=said):
        checks.check_disk(tmp_path, 1 << 60, "rank 0 on a")
    registry, _ = open_plugins()
    whole = checks.checkpoint_bytes(resolve(registry, sugar=dict(SUGAR)))
    lora = checks.checkpoint_bytes(resolve(registry, sugar={**SUGAR, "model": {"lora": {"r": 2}}}))
    assert (whole > 0, lora) == (True, 0)


class Unheard(LocalStrategy):
    """One of two ranks, whose messages do not reach the other."""

    world_size = 2

    def sum_over_ranks(self, values: Sequence[float]) -> list[float]:
        with waiting("a sum", 0, None, 20.0):
            raise RuntimeError("[gloo] Connection closed by peer [10.0.0.2]:1234")


def test_an_all_reduce_that_fails_names_rank_and_interface() -> None:
    with pytest.raises(UserError, match=r"rank 0 on a: an all-reduce over 2 ranks failed") as caught:
        process.check_all_reduce(Unheard(), "rank 0 on a")
    assert "waited 0 s (deadline 20 s) for the others" in str(caught.value)
    assert "Connection closed by peer [10.0.0.2]:1234" in str(caught.value)
    assert "GLOO_SOCKET_IFNAME" in str(caught.value)
    assert caught.value.exit_code == 2


def test_what_srun_says() -> None:
    address = {"MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    job = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    for step in ({}, {"SLURM_STEP_ID": "4294967290"}, {"SLURM_STEP_ID": "4294967291"}, {"SLURM_STEP_ID": "-5"}):
        assert started_rank({**job, **step}) is None, "a batch script, and salloc's shell, are no task of srun"
        assert started_rank({**job, **step, **address}) is None
    slurm = {"SLURM_PROCID": "9", "SLURM_NTASKS": "32", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1"}
    env = {**slurm, "SLURM_STEP_ID": "0", **address}
    rank = started_rank(env)
    assert rank == RankInfo(9, 16, 1, "srun")
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("9", "16", "1")
    one_gpu = {**env, "CUDA_VISIBLE_DEVICES": "3"}
    del one_gpu["RANK"]
    assert started_rank(one_gpu) == rank
    assert one_gpu["LOCAL_RANK"] == "0", "--gpus-per-task shows each task one device"
    with pytest.raises(UserError, match="srun started 16 processes, and MASTER_ADDR and MASTER_PORT is not set"):
        started_rank({**slurm, "SLURM_STEP_ID": "0"})
    assert started_rank({"RANK": "0", "WORLD_SIZE": "1"}) is None


def test_nproc_and_a_launcher_contradict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    started = {"RANK": "1", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="--nproc 4, but torchrun started 16 processes"):
        launched_rank(4)
    rank = launched_rank(16)
    assert rank is not None
    assert (rank.rank, rank.world_size) == (1, 16)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_without_the_plugin_a_rank_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_DISABLE_PLUGINS", "rlhf-plugin-launchers")
    monkeypatch.setenv(name, "1")
    assert launched_rank(None) is None
    monkeypatch.setenv(name, "8")
    with pytest.raises(UserError, match="pip install rlhf-plugin-launchers") as refused:
        launched_rank(None)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("ranks", [{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, {}])
@pytest.mark.parametrize(
    ("name", "value"),
    [("USE_FSDP", "true"), ("USE_DEEPSPEED", "True"), ("MIXED_PRECISION", "bf16"), ("DYNAMO_BACKEND", "INDUCTOR")],
)
def test_what_accelerate_asks_for_and_nobody_takes_is_refused(ranks: dict[str, str], name: str, value: str) -> None:
    plain = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_USE_FSDP": "false"}
    assert (started_rank({**ranks, **plain}) is None) == (not ranks)
    with pytest.raises(UserError, match=f"accelerate's configuration sets {name.lower()}={value.lower()}"):
        started_rank({**ranks, **plain, f"ACCELERATE_{name}": value})


@pytest.mark.parametrize(
    "name", ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"]
)
def test_a_launcher_that_was_asked_for_more_than_arrived(name: str) -> None:
    assert started_rank({name: "1"}) is None
    with pytest.raises(UserError, match=f"{name}: asked for 2 processes, found 1"):
        started_rank({name: "2"})
    of_accelerate = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_PORT": "29500"}
    with pytest.raises(UserError, match="accelerate launch: asked for several processes, found 1"):
        started_rank(of_accelerate)
    with pytest.raises(UserError, match="RANK=1, but there are only 1 ranks"):
        started_rank({"RANK": "1"})


def test_ranks_that_neither_torchrun_nor_srun_started(monkeypatch: pytest.MonkeyPatch) -> None:
    address = {"MASTER_ADDR": "a", "MASTER_PORT": "1"}
    env = {"RANK": "3", "WORLD_SIZE": "4", "SLURM_LOCALID": "1", **address}
    rank = started_rank(env)
    assert rank == RankInfo(3, 4, 1, "torchrun")
    assert env["LOCAL_RANK"] == "1", "accelerate takes no rank without"
    calls = list[str]()
    monkeypatch.setattr(rank_module, "die_with_parent", lambda: calls.append("dies with its parent"))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    end_with_launcher(rank)
    assert not calls, "a shell that starts the ranks may end before they do"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    end_with_launcher(rank)
    end_with_launcher(replace(rank, launcher="srun"))
    assert calls == ["dies with its parent"]


def test_resume_on_another_number_of_processes(tmp_path: Path) -> None:
    registry, hooks = open_plugins()
    run = tmp_path / "run"
    RunDir(run).create(plan_run(registry, hooks, resolve(registry, sugar=dict(SUGAR)), 1), {})
    with pytest.raises(SystemExit) as caught:
        main(["train", "--resume", str(run), "--nproc", "2"])
    assert caught.value.code == 2
    with pytest.raises(UserError, match="has no checkpoint to continue from"):
        planned_resume(run, None, open_plugins()[0], 2)
    assert planned_resume(run, None, open_plugins()[0], 1)[0].world_size == 1
    (run / "checkpoints" / "step-000003").mkdir(parents=True)
    plan, _ = planned_resume(run, None, open_plugins()[0], 2)
    assert plan.world_size == 2
    assert plan.extensions[-1]["changes"] == {"processes": [1, 2]}
