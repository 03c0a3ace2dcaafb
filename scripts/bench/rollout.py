"""Tokens per second of sampling: the native engine, transformers' ``generate`` and its continuous batching.

Every side produces the same number of tokens per row; the end of the text is banned. Continuous batching gets a bounded
cache: left to itself it takes the share of memory that it may have on a GPU, and the process is killed. Case ``b, 16
places`` asks what refilling is worth: waiting requests enter as others end, or once the engine is empty.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench._sides import as_folder, smollm2
from scripts.bench._work import Work, find

THREADS = 2
ROUNDS = {"a": 3, "b": 1, "b, 16 places": 1}
PAGE = 32
"""Positions per page of the continuous-batching cache."""


class Contest:
    def __init__(self, folder: Path, work: Work) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from rlhf_plugin_native.decode_step import decode_step

        torch.set_num_threads(THREADS)
        load = partial(AutoModelForCausalLM.from_pretrained, folder, dtype=torch.float32)
        self.model: Any = load().eval()
        self.ours: Any = load().eval()  # a model of our own: ours gets another attention function
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.work, self.lengths = work, work.lengths()
        self.ids = [self.tokenizer(p)["input_ids"] for p in work.prompts for _ in range(work.group)]
        with torch.inference_mode():
            decode_step(self.ours)  # what the engine finds out once per model, before any time is taken

    def native(self, kind: Any = "auto", places: int = 256, refill: bool = True, packed: bool = True) -> int:
        from rlhf_core.models.layers.matmul import use_matmul_backend
        from rlhf_core.types.rollouts import RolloutRequest, SamplingParams
        from rlhf_plugin_native import decode
        from rlhf_plugin_native import engine as native
        from rlhf_plugin_native.engine import NativeEngine

        use_matmul_backend(kind)
        requests = [
            RolloutRequest(str(i // self.work.group), tuple(ids), i % self.work.group, i, n)
            for i, (ids, n) in enumerate(zip(self.ids, self.lengths, strict=True))
        ]
        longest, growing, decode_step = max(self.lengths), decode.growing, native.decode_step
        decode.growing = growing if refill else lambda _: False
        native.decode_step = decode_step if packed else lambda _: None
        try:
            rollouts = NativeEngine(self.ours, self.tokenizer, 8192, places).generate(
                requests, SamplingParams(max_tokens=longest, min_tokens=longest), 0
            )
        finally:
            decode.growing, native.decode_step = growing, decode_step
            use_matmul_backend("torch")
        return sum(len(r.completion_ids) for r in rollouts)

    def generate(self) -> int:
        """``model.generate`` with left padding, as trainers call it."""
        import torch
        from transformers import LogitsProcessorList

        from scripts.bench._trl import Lengths

        batch = self.tokenizer.pad({"input_ids": self.ids}, padding_side="left", return_tensors="pt")
        end = self.tokenizer.eos_token_id
        with torch.no_grad():
            out = self.model.generate(
                **batch,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                max_new_tokens=max(self.lengths),
                pad_token_id=end,
                logits_processor=LogitsProcessorList([Lengths(self.lengths, end)]),
            )
        completions = out[:, batch["input_ids"].shape[1] :]
        return sum(int((row == end).int().argmax()) + 1 for row in completions)

    def continuous_batching(self) -> int:
        """``ContinuousBatchingManager`` with a length per request."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        positions = sum(len(ids) + n + PAGE for ids, n in zip(self.ids, self.lengths, strict=True))
        manager = self.model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                eos_token_id=-1,
                pad_token_id=self.tokenizer.pad_token_id,
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE, num_blocks=positions // PAGE + 1, max_batch_tokens=1024, return_logprobs=True
            ),
        )
        manager.start()
        try:
            for ids, n in zip(self.ids, self.lengths, strict=True):
                manager.add_request(ids, max_new_tokens=n)
            done: dict[str, int] = {}
            while len(done) < len(self.ids):
                result = manager.get_result(timeout=300)
                if result is None:
                    raise RuntimeError("no result within 300 s")
                if result.is_finished():
                    done[result.request_id] = len(result.generated_tokens)
        finally:
            manager.stop(block=True)
        return sum(done.values())

    def sides(self, places: int | None) -> dict[str, Callable[[], int]]:
        if places:
            return {name: partial(self.native, "auto", places, name == "refilled") for name in ("refilled", "emptied")}
        return {
            "native": self.native,
            "native, model's forward": partial(self.native, packed=False),
            "native, torch's products": partial(self.native, "torch", packed=False),
            "generate": self.generate,
            "continuous batching": self.continuous_batching,
        }


def contest(case: str, rounds: int, model: Path | None = None) -> dict[str, Any]:
    """Tokens per second of each side; a side that fails says why instead."""
    name, _, places = case.partition(", ")
    work = find(name)
    match = Contest(as_folder(model or smollm2()), work)
    seconds: dict[str, list[float]] = {}
    cpu_seconds: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    expected = sum(match.lengths)
    for n in range(rounds):
        sides = list(match.sides(int(places.split()[0]) if places else None).items())
        for name, side in sides if n % 2 == 0 else sides[::-1]:
            if name in failed:
                continue
            start, cpu_start = time.perf_counter(), time.process_time()
            try:
                tokens = side()
            except Exception as error:  # another library may fail in any way, and that is a result
                failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
                continue
            seconds.setdefault(name, []).append(time.perf_counter() - start)
            cpu_seconds.setdefault(name, []).append(time.process_time() - cpu_start)
            if tokens != expected:
                failed[name] = f"made {tokens} tokens instead of {expected}"
    rates = {name: round(expected / statistics.median(s), 1) for name, s in seconds.items()}
    first, *others = rates
    return {
        "work": work.what,
        "tokens": expected,
        "tokens_per_second": rates,
        "failed": failed,
        "cpu_seconds": {name: round(statistics.median(s), 2) for name, s in cpu_seconds.items()},
        f"{first} against": {other: round(rates[first] / rates[other], 2) for other in others},
        "rounds": rounds,
        "threads": THREADS,
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def cases(model: Path | None = None, rounds: int | None = None) -> dict[str, Callable[[], dict[str, Any]]]:
    """``rounds`` is how often each side takes its turn."""
    return {case: partial(contest, case, rounds or usual, model) for case, usual in ROUNDS.items()}
