"""Our side of ``grpo_step``: ``rlhf train`` itself, step by step.

    python -m scripts.bench._grpo_ours MODEL_FOLDER SCRATCH_FOLDER STEPS

The reward is a component of a throw-away distribution in the scratch folder, found by its entry point like any plugin.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from scripts.bench._grpo_work import GROUP, LEARNING_RATE, MICRO_BATCH, NEW_TOKENS, PROMPTS, Gate, write_prompts

PLUGIN = """
from rlhf_core.api import ComponentConfig, Score
from scripts.bench._grpo_work import variety

class VarietyConfig(ComponentConfig):
    name: str = "variety"
    def build(self, ctx):
        return Variety()

class Variety:
    def score(self, samples):
        return [Score(variety(s.completion)) for s in samples]
"""


def install_reward(folder: Path) -> None:
    """Put a distribution with one entry point on the path."""
    info = folder / "rlhf_bench_reward-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlhf-bench-reward\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf.reward]\nvariety = rlhf_bench_reward:VarietyConfig\n")
    (folder / "rlhf_bench_reward.py").write_text(PLUGIN)
    sys.path.insert(0, str(folder))


def settings(model: str, folder: Path, steps: int) -> list[str]:
    """What ``rlhf train --set`` would be given."""
    return [
        "trainer.name=grpo", "reward.name=variety", f"model.path={model}", "model.prompt_format=raw",
        f"dataset={{name: jsonl, path: {write_prompts(folder)}, heldout_fraction: 0}}",
        f"trainer.steps={steps}", f"trainer.rollout_batch_size={len(PROMPTS) * GROUP}", f"trainer.group_size={GROUP}",
        f"trainer.micro_batch_size={MICRO_BATCH}", f"trainer.optimizer.learning_rate={LEARNING_RATE}",
        f"trainer.sampling={{max_tokens: {NEW_TOKENS}, min_tokens: {NEW_TOKENS}, temperature: 1.0}}",
        "trainer.kl={coefficient: 0.0, track: false}", "trainer.eval_every=0", "trainer.eval_samples=0",
        "trainer.checkpoint_every=0",
    ]


def main() -> None:
    """Run until told to stop."""
    model, folder, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    gate = Gate()
    install_reward(folder)
    from rlhf_core.config.load import resolve
    from rlhf_core.hooks import load_hooks
    from rlhf_core.launch import plan_run, preflight, run_plan
    from rlhf_core.registry import Registry

    def progress(step: int, total: int | None, row: Mapping[str, float]) -> None:
        parts = {name: row[name] for name in ("rollout", "reward", "update")}
        gate.step_done(parts=parts, tokens_generated=row["tokens_generated"], tokens_trained=row["train/tokens"],
                       grad_norm=row.get("grad_norm", 0.0))

    registry = Registry()
    config = resolve(registry, settings=settings(model, folder, steps))
    hooks = load_hooks()
    plan = plan_run(registry, hooks, config, 1)
    preflight(registry, config, 1)
    run_plan(plan, config, registry, hooks, folder / "run", resume=False, progress=progress)


if __name__ == "__main__":
    main()
