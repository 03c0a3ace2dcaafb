"""Episodes with slow tools: ``as_ready`` and ``by_count`` against lock step, and what a call costs beside its tool.

Each episode has 6 turns, a call after each but the last, which takes 0.2 s; every 50th hangs until its deadline of 5 s.
Every drawn token is replaced by that of a fixed call. ``lock step`` asks the engine for all turns of a round in one
call, as for engines without streams. ``bound_s`` is the larger of decoding alone and of the slowest episode.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from scripts._distribution import installed
from scripts.bench._late_tools import ENTRIES, MODULE, agent_of, writes_calls
from scripts.bench._random_llama import random_llama

TURNS, LATENCY_S, DEADLINE_S, HANG_EVERY = 6, 0.2, 5.0, 50
THREADS = 2
EMBEDDED = "pocket-tools"
SIDES = ("lock step", "by_count", "as_ready")


class Timed:
    """An engine whose seconds are counted; without streams if told so."""

    def __init__(self, engine: Any, streams: bool) -> None:
        self.engine, self.streams, self.seconds = engine, streams, 0.0

    def generate(self, *arguments: Any) -> Any:
        return self._timed(self.engine.generate, *arguments)

    def open_stream(self, *arguments: Any) -> Any:
        stream = self.engine.open_stream(*arguments) if self.streams else None
        if stream is not None:
            stream.take = partial(self._timed, stream.take)
        return stream

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.perf_counter() - began


class Contest:
    def __init__(self, shape: str, threads: int) -> None:
        import torch

        from rlhf_core.models.config import ModelConfig
        from rlhf_core.models.layers.matmul import use_matmul_backend
        from rlhf_core.models.load import load_policy, load_tokenizer
        from rlhf_plugin_native.engine import NativeEngine

        torch.set_num_threads(threads)
        use_matmul_backend("auto")
        embedded = shape == EMBEDDED
        config = ModelConfig(path=EMBEDDED) if embedded else ModelConfig(path="pocket", chat_template="hermes")
        self.tokenizer: Any = load_tokenizer(config)
        model = load_policy(config).model.eval() if embedded else random_llama(shape)
        self.engine = NativeEngine(model, self.tokenizer, 4096, keep_mib=8192)

    def play(self, side: str, episodes: int, latency_s: float = LATENCY_S, hang_every: int = HANG_EVERY) -> Any:
        from rlhf_core.models.prompt_format import Formatter
        from rlhf_core.types.rollouts import Prompt, PromptGroup, SamplingParams

        schedule = "by_count" if side == "lock step" else side
        settings = {"workers": episodes, "call_timeout_s": DEADLINE_S, "max_turns": TURNS, "schedule": schedule}
        agent, tools = agent_of(self.tokenizer, settings, {"latency_s": latency_s, "hang_every": hang_every})
        formatter = Formatter(self.tokenizer, "auto")
        engine = Timed(self.engine, side != "lock step")
        try:
            with writes_calls(self.tokenizer) as length:
                question = {"role": "user", "content": "What is the value today?"}
                prompts = [Prompt(str(n), (question,), tools=tools) for n in range(episodes)]
                groups = [PromptGroup(prompt, formatter.encode_prompt(prompt), 1) for prompt in prompts]
                sampling = SamplingParams(max_tokens=TURNS * (length + 150))
                began = time.perf_counter()
                rollouts = agent.play(groups, [[n + 1] for n in range(episodes)], engine, sampling, 0)
                seconds = time.perf_counter() - began
        finally:
            agent.close()
        assert all(rollout.info["turns"] == TURNS for rollout in rollouts)
        return seconds, engine.seconds, rollouts


def contest(episodes: int, rounds: int, shape: str = EMBEDDED, threads: int = THREADS) -> dict[str, Any]:
    """Seconds of every schedule, the bound, and memory."""
    match = Contest(shape, threads)
    match.play("by_count", 1, 0.0, 0)  # what is found out once per model
    _, alone, _ = match.play("by_count", 1, 0.0, 0)
    _, decoding, rollouts = match.play("by_count", episodes, 0.0, 0)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    cpu_seconds: dict[str, float] = {}
    slowest = 0.0
    for n in range(rounds):
        for side in SIDES[:: 1 if n % 2 == 0 else -1]:
            cpu_began = time.process_time()
            took, _, rollouts = match.play(side, episodes)
            seconds[side].append(took)
            cpu_seconds[side] = round(time.process_time() - cpu_began, 2)
            slowest = max(sum(turn.seconds for turn in rollout.turns) for rollout in rollouts)
    medians = {side: statistics.median(s) for side, s in seconds.items()}
    bound = max(decoding, slowest + alone)
    late = sum(turn.status.value == "timeout" for rollout in rollouts for turn in rollout.turns)
    return {
        "model": shape,
        "episodes": episodes,
        "turns": TURNS,
        "calls": episodes * (TURNS - 1),
        "calls_that_hang": late,
        "seconds": {side: round(s, 2) for side, s in medians.items()},
        "cpu_seconds_of_the_trainer": cpu_seconds,
        "as_ready_times_as_fast_as_lock_step": round(medians["lock step"] / medians["as_ready"], 2),
        "decoding_alone_s": round(decoding, 2),
        "slowest_episode_s": round(slowest + alone, 2),
        "bound_s": round(bound, 2),
        "as_ready_over_bound": round(medians["as_ready"] / bound, 2),
        "rounds": rounds,
        "threads": threads,
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def calls(processes: int = 256, repeats: int = 200) -> dict[str, Any]:
    """What a call costs beside its tool."""
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_tokenizer
    from rlhf_core.types.messages import ToolCall
    from rlhf_core.types.rollouts import Prompt, PromptGroup
    from rlhf_plugin_episodes.episode import Episode

    tokenizer = load_tokenizer(ModelConfig(path="pocket", chat_template="hermes"))
    agent, _ = agent_of(tokenizer, {"workers": processes}, {})
    question = {"role": "user", "content": "?"}
    episodes = [Episode(PromptGroup(Prompt(str(n), (question,)), (1,), 1), 0, n, 100, 100) for n in range(processes)]
    call = [ToolCall("wait", {}, "call00000")]

    def timed(episodes: list[Episode]) -> float:
        began = time.perf_counter()
        agent.answers.step([(episode, call) for episode in episodes], 0)
        return 1000 * (time.perf_counter() - began)

    try:
        first = timed(episodes[:1])
        single = [timed(episodes[:1]) for _ in range(repeats)]
        started = timed(episodes[1:])
        together = [timed(episodes) / processes for _ in range(5)]
    finally:
        agent.answers.release(episodes)
        agent.close()
    return {
        "one_call_ms": round(statistics.median(single), 3),
        "first_call_of_an_episode_ms": round(first, 2),
        "processes": processes,
        "start_of_each_ms": round(started / (processes - 1), 2),
        "call_among_all_ms": round(statistics.median(together), 3),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def prepared(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    with installed("late_environment", MODULE, ENTRIES):
        return work()


def cases(rounds: int = 3, episodes: tuple[int, ...] = (64, 256)) -> dict[str, Callable[[], Any]]:
    plays = {
        f"{n} episodes, {shape}": partial(prepared, partial(contest, n, rounds, shape))
        for shape in (EMBEDDED, "llama-1m")
        for n in episodes
    }
    return {"calls": partial(prepared, calls), **plays}
