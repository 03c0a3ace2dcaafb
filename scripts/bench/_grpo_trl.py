"""TRL's side of ``grpo_step``: its GRPOTrainer on the same work, step by step.

    python -m scripts.bench._grpo_trl MODEL_FOLDER SCRATCH_FOLDER STEPS

Settings that would slow TRL down without being part of the work are off: gradient checkpointing (its default),
mixed precision (its default; both sides are float32), completion logging, evaluation and saving.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from scripts.bench._grpo_work import GROUP, LEARNING_RATE, MICRO_BATCH, NEW_TOKENS, PROMPTS, Gate, variety


class Timed(GRPOTrainer):
    """Notes how long generation and scoring take, and counts the completion tokens."""

    rollout_seconds = 0.0
    tokens = 0

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        start = time.perf_counter()
        out = super()._generate_and_score_completions(inputs)
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
        self.gate.step_done(parts={"rollout": seconds}, tokens_generated=tokens, tokens_trained=tokens)


def main() -> None:
    """Run until told to stop."""
    model, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    gate = Gate()
    config = GRPOConfig(
        output_dir=folder, use_cpu=not torch.cuda.is_available(), bf16=False, gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"}, per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=len(PROMPTS) * GROUP // MICRO_BATCH, num_generations=GROUP,
        max_completion_length=NEW_TOKENS, generation_kwargs={"min_new_tokens": NEW_TOKENS}, temperature=1.0,
        top_k=0, top_p=1.0, beta=0.0, learning_rate=LEARNING_RATE, max_steps=steps, lr_scheduler_type="constant",
        max_grad_norm=1.0, logging_strategy="no", save_strategy="no", eval_strategy="no", report_to=[],
        disable_tqdm=True, dataloader_pin_memory=False, seed=0)

    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [variety(c) for c in completions]

    timer = Steps(gate)
    trainer = Timed(model=model, reward_funcs=reward, args=config, callbacks=[timer],
                    train_dataset=Dataset.from_list([{"prompt": p} for p in PROMPTS]),
                    processing_class=AutoTokenizer.from_pretrained(model))
    timer.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
