"""TRL's side of a comparison: its GRPOTrainer on the same work, step by step.

    python -m scripts.bench._grpo_trl CASE MODEL_FOLDER SCRATCH_FOLDER STEPS [vllm share=SHARE] [bf16]

Settings that would slow TRL down without being part of the work are off: gradient checkpointing (its default),
completion logging, evaluation and saving. Mixed precision, its default, is on in the bfloat16 case only.
Completions get their lengths from the case's table: the end of the text is impossible before and certain then. With
``vllm`` they are sampled by vLLM in the process, which has SHARE of the card and sleeps during updates, and end where
they end.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from scripts.bench._grpo_work import LEARNING_RATE, WARM_UP_TOKENS, Gate, find, variety


class Lengths(LogitsProcessor):
    """Ends every row after the given number of tokens, the end itself included."""

    def __init__(self, lengths: list[int], end: int) -> None:
        self.table = torch.tensor(lengths)
        self.end, self.start = end, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """Called with prompts and tokens so far, once per token."""
        self.start = self.start or input_ids.shape[1]
        now = self.table == input_ids.shape[1] - self.start + 1
        scores[:, self.end] = -torch.inf
        scores[now] = -torch.inf
        scores[now, self.end] = 0.0
        return scores


class Timed(GRPOTrainer):
    """Notes how long generation and scoring take, counts the completion tokens, and gives rows their lengths."""

    rollout_seconds = 0.0
    tokens = 0
    calls = 0
    lengths: tuple[int, ...] = ()

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        start = time.perf_counter()
        table = list(self.lengths) if self.calls else [WARM_UP_TOKENS] * len(self.lengths)
        self.calls += 1
        model, tokenizer = self.accelerator.unwrap_model(self.model), cast(Any, self.processing_class)
        generate, ends = model.generate, Lengths(table, tokenizer.eos_token_id)
        model.generate = functools.partial(generate, logits_processor=LogitsProcessorList([ends]))
        try:
            out = super()._generate_and_score_completions(inputs)
        finally:
            model.generate = generate
        self.rollout_seconds += time.perf_counter() - start
        self.tokens += int(out["completion_mask"].sum())
        return out


class Steps(TrainerCallback):
    """Hands every finished step to the gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the optimizer's step."""
        seconds, tokens = self.trainer.rollout_seconds, self.trainer.tokens
        self.trainer.rollout_seconds, self.trainer.tokens = 0.0, 0
        whole = time.perf_counter() - self.gate.started
        parts = {"rollout": seconds, "update": whole - seconds}
        self.gate.step_done(parts=parts, tokens_generated=tokens, tokens_trained=tokens)


def with_vllm(words: Sequence[str]) -> dict[str, Any]:
    """Settings of TRL for vLLM in its process, if one of the words is ``vllm``."""
    if "vllm" not in words:
        return {}
    share = next(float(word.removeprefix("share=")) for word in words if word.startswith("share="))
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": share,
        "vllm_enable_sleep_mode": torch.cuda.is_available(),
        "vllm_importance_sampling_correction": False,
    }


def main() -> None:
    """Run until told to stop."""
    work, model, folder, steps = find(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    gate = Gate()
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=not torch.cuda.is_available(),
        bf16=work.dtype == "bfloat16" or "bf16" in sys.argv[5:],
        **with_vllm(sys.argv[5:]),
        gradient_checkpointing="trl" in work.checkpointed,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=work.micro_batch,
        gradient_accumulation_steps=work.rows // work.micro_batch,
        num_generations=work.group,
        max_completion_length=work.longest,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        beta=0.0,
        learning_rate=LEARNING_RATE,
        max_steps=steps,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=0,
    )

    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [variety(c) for c in completions]

    timer = Steps(gate)
    lora = LoraConfig(r=work.lora_r, lora_alpha=2 * work.lora_r, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = Timed(
        model=model,
        reward_funcs=reward,
        args=config,
        callbacks=[timer],
        train_dataset=Dataset.from_list([{"prompt": p} for p in work.prompts]),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=lora if work.lora_r else None,
    )
    trainer.lengths = tuple(work.lengths())
    timer.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
