"""Plays on a model of this process: those that run side by side are sampled together, and no thread decides how."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rlhf_core.cli import context_of, load_sampler, open_registry
from rlhf_core.data import read_jsonl
from rlhf_core.models import ModelConfig
from rlhf_plugin_agents.backends.base import BackendFault
from rlhf_plugin_agents.backends.config import NativeConfig
from rlhf_plugin_agents.backends.lockstep import LockStep
from rlhf_plugin_agents.backends.native import NativeBackend
from rlhf_plugin_agents.harness import Job, evaluate
from rlhf_plugin_agents.suites.config import AgentBenchMini
from rlhf_plugin_episodes.lookup import weights_path


class CountedEngine:
    """The real engine; keeps how many requests each call had."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.sizes = engine, list[int]()

    def generate(self, requests: Sequence[Any], *rest: Any) -> Any:
        self.sizes.append(len(requests))
        return self.engine.generate(requests, *rest)


class CountedConfig(NativeConfig):
    """Keeps its engine."""

    def make(self, tasks: Any, ctx: Any) -> NativeBackend:
        policy, engine = load_sampler(ctx.registry, self.model)
        self.engines.append(CountedEngine(engine))
        return NativeBackend(policy, self.engines[-1])

    @property
    def engines(self) -> list[CountedEngine]:
        return ENGINES


ENGINES: list[CountedEngine] = []


@pytest.fixture(autouse=True)
def no_engines() -> Iterator[None]:
    ENGINES.clear()
    yield
    ENGINES.clear()


def play(folder: Path, workers: int | None) -> tuple[list[dict[str, Any]], list[int]]:
    limits = {"max_turns": 3, "max_turn_tokens": 12}
    suite = AgentBenchMini(max_per_category=3, agent_settings=limits)
    job = Job(suite, suite.agent_config("react"), CountedConfig(model=ModelConfig(path="pocket-tools")))
    evaluate(job, context_of(open_registry()), folder, workers)
    decided = ("task", "answer", "value", "process", "stop_reason", "completion_tokens", "prompt_tokens")
    rows = sorted(read_jsonl(folder / "rows.jsonl"), key=lambda row: row["task"])
    return [{k: row[k] for k in decided} for row in rows], ENGINES[-1].sizes


@pytest.mark.slow
def test_plays_share_the_calls_of_the_engine_and_end_as_they_do_alone(tmp_path: Path) -> None:
    alone, calls = play(tmp_path / "alone", 1)
    together, shared = play(tmp_path / "together", None)
    again, repeated = play(tmp_path / "again", None)
    assert len(alone) == 9
    assert set(calls) == {1}
    assert together == alone
    assert shared[0] == 9, "all of them ask first"
    assert sum(shared) == len(calls), "as many requests"
    assert (again, repeated) == (together, shared)


def test_a_model_is_loaded_once_until_its_weights_change(tmp_path: Path) -> None:
    folder = copytree(weights_path(), tmp_path / "model")
    ctx, config = context_of(open_registry()), NativeConfig(model=ModelConfig(path=str(folder)))

    def loaded() -> Any:
        backend = config.make((), ctx)
        assert isinstance(backend, NativeBackend)
        return backend.engine.model

    first = loaded()
    assert loaded() is first
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, folder / "model.safetensors")
    assert loaded() is not first


def test_which_requests_meet_does_not_depend_on_time() -> None:
    """Plays of 1 to 4 requests, five at a time, whose tools take their time: batches are those of the counts alone."""

    def batches(delay: float) -> list[list[str]]:
        seen: list[list[str]] = []

        def serve(asked: Sequence[str]) -> Sequence[str]:
            seen.append(sorted(asked))
            return [text.upper() for text in asked]

        step = LockStep[str, str](serve)
        step.begin(9, 5)

        def one(number: int) -> None:
            try:
                for turn in range(1 + number % 4):
                    time.sleep(delay * ((number * 7 + turn) % 3))
                    assert step.ask(f"{number}/{turn}") == f"{number}/{turn}".upper()
            finally:
                step.end()

        with ThreadPoolExecutor(5) as pool:
            list(pool.map(one, range(9)))
        return seen

    quick = batches(0.0)
    assert batches(0.01) == quick
    assert [len(batch) for batch in quick][:2] == [5, 5]


def test_one_thread_answers_whoever_asks() -> None:
    """Every thread that runs a model keeps memory of its own."""
    step = LockStep[int, int](lambda asked: [threading.get_ident() for _ in asked])
    step.begin(6, 1)

    def play(n: int) -> tuple[int, int]:
        answer = step.ask(n)
        step.end()
        return answer, threading.get_ident()

    rows: list[tuple[int, int]] = []
    for n in range(6):
        with ThreadPoolExecutor(1) as pool:
            rows.append(pool.submit(play, n).result())
    assert len({answered for answered, _ in rows}) == 1
    assert rows[0][0] not in {asked for _, asked in rows}


def test_a_failure_reaches_all_who_asked() -> None:
    def serve(asked: Sequence[int]) -> Sequence[int]:
        raise ValueError("no memory")

    step = LockStep[int, int](serve)
    step.begin(2, 2)
    errors: list[str] = []

    def one(number: int) -> None:
        try:
            step.ask(number)
        except ValueError as error:
            errors.append(str(error))
        finally:
            step.end()

    threads = [threading.Thread(target=one, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert errors == ["no memory", "no memory"]


def test_who_waits_for_others_is_interrupted() -> None:
    step = LockStep[int, int](lambda asked: asked)
    step.begin(2, 2)
    raised: list[BaseException] = []

    def one() -> None:
        try:
            step.ask(1)
        except BackendFault as error:
            raised.append(error)

    thread = threading.Thread(target=one)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive(), "the other has not asked yet"
    step.interrupt()
    thread.join(10)
    assert [str(error) for error in raised] == ["interrupted"]
