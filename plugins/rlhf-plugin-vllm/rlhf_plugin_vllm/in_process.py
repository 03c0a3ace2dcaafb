"""vLLM's engine inside this process: started, asked, given weights, put to sleep, and ended."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_plugin_vllm.colocated_config import ColocatedConfig
from rlhf_plugin_vllm.server import LAUNCHER, lora_rank
from rlhf_plugin_vllm.worker import EXTENSION

WEIGHTS_AND_CACHE = 2
"""Level of vLLM's sleep that keeps no weights: all of them come with the next version."""
CACHE_ONLY = 1
"""The level that keeps the weights in the host's memory: under LoRA only adapters come."""


class InProcess:
    """One vLLM on the device that vLLM finds; processes start theirs together, as under an external launcher, each in a
    group of one within the run's process group."""

    def __init__(
        self, config: ColocatedConfig, folder: Path, dtype: str, context: int, rank: int, *, empty: bool = False
    ) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.update({"VLLM_NO_USAGE_STATS": "1", **config.environment})
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # before vLLM is imported: the engine in this process
        self._made_group = not _has_group()
        with process_unchanged():
            from vllm import LLM  # pyright: ignore[reportMissingImports]
            from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

            self.platform = str(current_platform.device_type)
            self.sleeps = config.sleep and current_platform.is_cuda()
            lora = {"enable_lora": True, "max_lora_rank": lora_rank(rank)} if rank else {}
            several = not self._made_group and torch.distributed.get_world_size() > 1
            more: dict[str, Any] = {"distributed_executor_backend": "external_launcher"} if several else {}
            more |= {"load_format": "dummy"} if empty else {}
            more |= {"enable_sleep_mode": self.sleeps} if current_platform.is_cuda() else {}
            self._llm: Any = LLM(
                model=str(folder),
                dtype=dtype,
                max_model_len=context,
                logprobs_mode="processed_logprobs",
                worker_extension_cls=EXTENSION,
                use_tqdm_on_load=False,
                gpu_memory_utilization=config.gpu_memory,
                **lora,
                **more,
                **config.arguments,
            )
        self._level = CACHE_ONLY if rank else WEIGHTS_AND_CACHE
        self._adapter: Any = None
        self._numbers = 0
        self._asleep = False

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the worker says of itself, as a server does."""
        return self._llm.collective_rpc("rlhf_hello", args=("",))[0]

    def take(self, label: str, weights: Iterator[tuple[str, torch.Tensor]] | None, adapter: Path | None) -> None:
        """Weights of a version, which all later completions are sampled from."""
        with process_unchanged():
            self.wake_up()
            if weights is not None:
                self._llm.collective_rpc("rlhf_take", args=(weights,))
            self._adapter = None if adapter is None else self._load_adapter(label, adapter)
            self._llm.reset_prefix_cache()
            self._llm.llm_engine.set_weight_version(label)

    def _load_adapter(self, label: str, folder: Path) -> Any:
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        engine, older = self._llm.llm_engine, self._adapter
        self._numbers += 1
        request = LoRARequest(label, self._numbers, str(folder))
        engine.add_lora(request)
        if older is not None:
            engine.remove_lora(older.lora_int_id)
        return request

    def ask(self, bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Answers in the form of a server's, in order, to bodies in the form of a server's requests."""
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

        prompts = [{"prompt_token_ids": body["token_ids"]} for body in bodies]
        params = [SamplingParams(**body["sampling_params"]) for body in bodies]
        with process_unchanged():
            self.wake_up()
            outputs = self._llm.generate(prompts, params, use_tqdm=False, lora_request=self._adapter)
        return [{"choices": [_choice(output.outputs[0])]} for output in outputs]

    def fall_asleep(self) -> None:
        """Give memory back until the next weights or request; nothing where the platform cannot."""
        if self.sleeps and not self._asleep:
            self._llm.sleep(self._level)
            self._asleep = True

    def wake_up(self) -> None:
        """Take the memory again; idempotent."""
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False

    @property
    def lost_weights(self) -> bool:
        """It sleeps, and kept no weights: it needs a version before it can be asked."""
        return self._asleep and self._level == WEIGHTS_AND_CACHE

    def close(self) -> None:
        """End it and its process groups, not the run's; idempotent."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        from vllm.distributed import parallel_state  # pyright: ignore[reportMissingImports]

        llm.llm_engine.engine_core.shutdown()
        parallel_state.destroy_model_parallel()
        if self._made_group:
            parallel_state.destroy_distributed_environment()
            return
        world, parallel_state._WORLD, parallel_state._NODE_COUNT = parallel_state._WORLD, None, None
        if world is not None:
            world.destroy()


def _has_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _choice(completion: Any) -> dict[str, Any]:
    ids = list(completion.token_ids)
    rows = [{"token_id": i, "logprob": row[i].logprob} for i, row in zip(ids, completion.logprobs or ())]
    return {
        "token_ids": ids,
        "logprobs": {"content": rows},
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "weight_versions": [{"version": span.version} for span in completion.weight_versions or ()],
    }


@contextlib.contextmanager
def process_unchanged() -> Generator[None, None, None]:
    """Leave this process as it was: random generators, threads, and a launcher's variables without a group."""
    set_num_threads, threads, dtype = torch.set_num_threads, torch.get_num_threads(), torch.get_default_dtype()
    python, arrays = random.getstate(), np.random.get_state()
    hidden = set[str]() if _has_group() else LAUNCHER & set(os.environ)
    launched = {name: os.environ.pop(name) for name in hidden}
    try:
        with torch.random.fork_rng():
            yield
    finally:
        os.environ.update(launched)
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_num_threads = set_num_threads  # vLLM for CPUs puts a function there that does nothing
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
