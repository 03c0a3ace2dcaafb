"""One side of :mod:`scripts.bench.decoding`: ``-m scripts.bench._decoding_side ENGINE WORK DTYPE MODEL STEPS``.

Both sides sample the same number of tokens with their log-probabilities, as training needs them; the first step is
short and not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from scripts.bench._work import WARM_UP_TOKENS, Gate, Work, find

Sample = Callable[[int], int]
"""Sample so many tokens of each completion; returns how many were sampled."""


def native(work: Work, dtype: str, folder: str) -> Sample:
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.layers.matmul import use_matmul_backend
    from rlhf_core.models.load import load_policy
    from rlhf_core.models.precision import set_precision
    from rlhf_core.runs.launch.process import keep_freed_memory
    from rlhf_core.types.rollouts import RolloutRequest, SamplingParams
    from rlhf_plugin_native.engine import NativeEngine

    keep_freed_memory()  # as every run does
    use_matmul_backend("auto")
    policy = load_policy(ModelConfig(path=folder, max_context=2048))
    set_precision(policy.model.eval(), "fp32" if dtype == "float32" else "bf16")
    rows = list(enumerate(ids for ids in prompt_ids(policy.tokenizer, work) for _ in range(work.group)))
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context, compile=True)
    requests = [RolloutRequest(str(n // work.group), tuple(ids), n % work.group, n) for n, ids in rows]

    def sample(tokens: int) -> int:
        sampling = SamplingParams(max_tokens=tokens, min_tokens=tokens)
        return sum(len(r.completion_ids) for r in engine.generate(requests, sampling, 0))

    return sample


def vllm(work: Work, dtype: str, folder: str) -> Sample:
    library: Any = import_module("vllm")  # a type checker takes the file of that name in this folder
    model = library.LLM(folder, dtype=dtype, max_model_len=2048, max_num_seqs=256, seed=0)
    prompts: Any = [{"prompt_token_ids": ids} for ids in prompt_ids(model.get_tokenizer(), work)]

    def sample(tokens: int) -> int:
        model.reset_prefix_cache()
        sampling = library.SamplingParams(n=work.group, temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0)
        answers = model.generate(prompts, sampling, use_tqdm=False)
        return sum(len(one.token_ids) for answer in answers for one in answer.outputs)

    return sample


def prompt_ids(tokenizer: Any, work: Work) -> Sequence[list[int]]:
    return [list(tokenizer(text)["input_ids"]) for text in work.prompts]


def main() -> None:
    engine, case, dtype, folder, steps = sys.argv[1:]
    gate, work = Gate(), find(case)
    sample = {"native": native, "vllm": vllm}[engine](work, dtype, folder)
    gate.step_done(tokens=sample(2 * WARM_UP_TOKENS))  # as many as the native engine compiles for
    for _ in range(int(steps)):
        gate.step_done(tokens=sample(work.longest))


if __name__ == "__main__":
    main()
