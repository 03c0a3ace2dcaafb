"""An engine that is gone on one of two ranks: all ranks save the last whole step together, and end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from rlhf_core.distributed.group import engine_on_every_rank
from rlhf_core.types.errors import EngineUnavailable

from . import engine_loss
from .test_runs_on_two_ranks import train, weights

ENGINE = '''
import os
from rlhf_core.config import ComponentConfig
from rlhf_core.rollouts import EngineUnavailable
from rlhf_plugin_native.engine import NativeEngine

class Failing:
    """The native engine; the one of rank 1 is gone in its N-th call."""

    def __init__(self, engine):
        self.engine, self.calls = engine, 0

    def generate(self, requests, sampling, policy_version):
        self.calls += 1
        if os.environ["RANK"] == "1" and str(self.calls) == os.environ.get("GONE_IN_CALL"):
            raise EngineUnavailable("no server is left", why="they ended", fix="start one")
        return self.engine.generate(requests, sampling, policy_version)

class FailingConfig(ComponentConfig):
    name: str = "failing"

    def build(self, ctx):
        return Failing(NativeEngine(ctx.policy.model, ctx.policy.tokenizer, ctx.policy.context))
'''
RUN = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--nproc", "2"]
RUN += ["--set", "trainer.steps=4", "--set", "trainer.rollout_batch_size=16", "--set", "trainer.group_size=4"]
RUN += ["--set", "trainer.checkpoint_every=0", "--set", "trainer.micro_batch_size=4", "--set", "trainer.gold_samples=0"]
RUN += ["--set", "rollout.name=failing", "--set", "strategy.timeout_s=120", "--set", "dataset.limit=64"]


@pytest.fixture
def site(tmp_path: Path) -> str:
    folder = tmp_path / "site"
    info = folder / "acme_engine-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "acme_engine.py").write_text(ENGINE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf.rollout]\nfailing = acme_engine:FailingConfig\n")
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs of ``engine_loss.py``, which two ranks made."""
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", engine_loss.__name__, str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=env, check=True, timeout=250, cwd=Path(__file__).parents[2])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", engine_loss.CASES)
def test_all_ranks_save_and_end_where_one_has_no_engine_left(name: str, runs: Path) -> None:
    case = engine_loss.CASES[name]
    ends = [json.loads((runs / f"rank-{rank}.json").read_text())[name] for rank in range(2)]
    saved = "" if case.saved is None else f"; everything up to step {case.saved} is saved"
    for rank, end in enumerate(ends):
        whose = "" if rank == case.rank else f"rank {case.rank}: "
        assert end["error"].startswith(f"EngineUnavailable: {whose}no server is left{saved}\n")
        assert end["seconds"] < engine_loss.DEADLINE_S / 2, "nobody waited for the deadline"
        assert (f"--resume {runs / name}" in end["error"]) == (case.saved is not None)
    steps = [int(p.name.removeprefix("step-")) for p in (runs / name / "checkpoints").iterdir()]
    assert steps == ([] if case.saved is None else [case.saved])


@pytest.mark.slow
@pytest.mark.long  # what is saved: above; two ranks that go on from a checkpoint: test_killed_ranks.py
def test_such_a_run_resumes_to_the_weights_of_an_undisturbed_one(tmp_path: Path, site: str) -> None:
    settings = [*RUN, "--set", "trainer.eval_samples=0"]
    train(tmp_path / "whole", *settings, PYTHONPATH=site)
    text = train(tmp_path / "run", *settings, code=1, PYTHONPATH=site, GONE_IN_CALL="3")
    assert text.count("error: ") == text.count("no server is left; everything up to step 2 is saved") == 1
    train(tmp_path / "run", "--resume", str(tmp_path / "run"), "--nproc", "2", PYTHONPATH=site)
    one, two = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(torch.equal(one[name], two[name]) for name in one)


class Threads:
    """Ranks that are threads."""

    def __init__(self, rank: int, meeting: Barrier, rows: dict[int, Any]) -> None:
        self.rank, self.world_size, self.meeting, self.rows = rank, meeting.parties, meeting, rows

    def gather_objects(self, value: Any) -> list[Any]:
        self.rows[self.rank] = value
        self.meeting.wait(10)
        rows = [self.rows[n] for n in range(self.world_size)]
        self.meeting.wait(10)
        return rows

    def max_over_ranks(self, value: int) -> int:
        return max(self.gather_objects(value))


def outcomes(lost: set[int]) -> list[EngineUnavailable | None]:
    """What each of three ranks leaves the context with."""
    meeting, rows = Barrier(3), dict[int, Any]()

    def sample(rank: int) -> EngineUnavailable | None:
        comm: Any = Threads(rank, meeting, rows)
        try:
            with engine_on_every_rank(comm):
                if rank in lost:
                    raise EngineUnavailable(f"no server of {rank}", why="they ended", fix="start one")
        except EngineUnavailable as error:
            return error
        return None

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(sample, range(3)))


def test_all_ranks_raise_what_one_of_them_says() -> None:
    errors = outcomes({1})
    assert [e and e.what for e in errors] == ["rank 1: no server of 1", "no server of 1", "rank 1: no server of 1"]
    assert all(e is not None and e.on_every_rank and (e.why, e.fix) == ("they ended", "start one") for e in errors)


@pytest.mark.parametrize(("lost", "count"), [(set[int](), 0), ({0, 2}, 3)])
def test_all_raise_or_none(lost: set[int], count: int) -> None:
    assert sum(error is not None for error in outcomes(lost)) == count
