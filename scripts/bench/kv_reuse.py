"""Keys and values kept between turns, against reading the whole context again at every turn.

A Llama-type model with random weights, float32, CPU; ``shared`` is one prompt for all 16 episodes, read once by both
sides. ``kept`` is the engine's stream of turns, ``read anew`` one ``generate`` call a turn. Both sample the same
tokens, but where rounding moves a draw.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from scripts.bench._random_llama import SHAPES, random_llama

EPISODES, PROMPT, TURN, RESULT = 16, 600, 24, 40
TURNS = (2, 4, 8, 16)
THREADS = 2
Rows = list[list[tuple[int, ...]]]


class Contest:
    def __init__(self, shape: str, turns: int, shared: bool, threads: int = THREADS, seed: int = 0) -> None:
        import numpy as np
        import torch

        from rlhf_core.models.config import ModelConfig
        from rlhf_core.models.layers.matmul import use_matmul_backend
        from rlhf_core.models.load import load_tokenizer
        from rlhf_plugin_native.engine import NativeEngine

        torch.set_num_threads(threads)
        use_matmul_backend("auto")
        self.turns = turns
        rng = np.random.default_rng(seed)
        vocabulary = SHAPES[shape]["vocab_size"]
        prompts = [rng.integers(3, vocabulary, PROMPT).tolist() for _ in range(EPISODES)]
        self.prompts = [prompts[0] if shared else prompt for prompt in prompts]
        self.results = [[rng.integers(3, vocabulary, RESULT).tolist() for _ in range(turns)] for _ in range(EPISODES)]
        tokenizer = load_tokenizer(ModelConfig(path="pocket"))  # texts are not looked at
        self.engine = NativeEngine(random_llama(shape), tokenizer, 4096, keep_mib=8192)
        self.engine.ends = ()  # every turn has all its tokens

    def play(self, keep: bool) -> tuple[Rows, dict[str, Any]]:
        from rlhf_core.types.rollouts import RolloutRequest, SamplingParams

        sampling = SamplingParams(max_tokens=TURN)
        contexts = [list(prompt) for prompt in self.prompts]
        rows: Rows = [[] for _ in contexts]
        stream = self.engine.open_stream(sampling, 0) if keep else None
        for turn in range(self.turns):
            requests = [RolloutRequest(str(e), tuple(ids), 0, 100 * e + turn) for e, ids in enumerate(contexts)]
            if stream is None:
                got = dict(enumerate(self.engine.generate(requests, sampling, 0)))
            else:
                got = {}
                for e, request in enumerate(requests):
                    stream.submit(e, request)
                while stream.waiting:
                    got |= stream.take()
            for e, ids in enumerate(contexts):
                rows[e].append(got[e].completion_ids)
                ids += [*got[e].completion_ids, *self.results[e][turn]]
        figures = {} if stream is None else stream.figures()
        if stream is not None:
            stream.close()
        return rows, figures


def differences(one: Rows, other: Rows) -> dict[str, Any]:
    """How many episodes differ, and the first token that does (after it the contexts differ, too)."""
    firsts: list[tuple[int, int, int]] = []
    for episode, (a, b) in enumerate(zip(one, other, strict=True)):
        pairs = ((t, p) for t in range(len(a)) for p in range(len(a[t])) if a[t][p] != b[t][p])
        first = next(pairs, None)
        if first is not None:
            firsts.append((first[0], first[1], episode))
    shown: Any = None
    if firsts:
        turn, position, episode = min(firsts)
        tokens = [int(rows[episode][turn][position]) for rows in (one, other)]
        shown = {"episode": episode, "turn": turn + 1, "token": position + 1, "kept": tokens[0], "read anew": tokens[1]}
    return {"episodes_that_differ": len(firsts), "first_differing_token": shown}


def contest(shape: str, turns: int, shared: bool, rounds: int, threads: int = THREADS) -> dict[str, Any]:
    match = Contest(shape, turns, shared, threads)
    sides = {"kept": True, "read anew": False}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in sides}
    rows: dict[str, Rows] = {}
    figures: dict[str, Any] = {}
    for n in range(rounds):
        for name, keep in list(sides.items())[:: 1 if n % 2 == 0 else -1]:
            began, cpu_began = time.perf_counter(), time.process_time()
            rows[name], counted = match.play(keep)
            seconds[name].append(time.perf_counter() - began)
            cpu_seconds[name].append(time.process_time() - cpu_began)
            figures |= counted
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    return {
        "model": shape,
        "turns": turns,
        "prompts": "shared" if shared else "distinct",
        "seconds": {name: round(s, 2) for name, s in medians.items()},
        "times_as_fast": round(medians["read anew"] / medians["kept"], 2),
        "cpu_seconds": {name: round(statistics.median(s), 2) for name, s in cpu_seconds.items()},
        **differences(rows["kept"], rows["read anew"]),
        "kept_mib": round(figures["kept_bytes"] / (1 << 20), 1),
        "tokens_read_by_kept": figures["tokens_read"],
        "rounds": rounds,
        "threads": threads,
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def cases(
    shape: str = "llama-11m", turns: Sequence[int] = TURNS, rounds: int = 3, threads: int = THREADS
) -> dict[str, Callable[[], Any]]:
    return {
        f"{shape}, {'shared' if shared else 'distinct'}, {n} turns": partial(contest, shape, n, shared, rounds, threads)
        for shared in (True, False)
        for n in turns
    }
