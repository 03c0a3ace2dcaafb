"""Our side of a comparison: ``rlhf train`` itself, step by step.

    python -m scripts.bench._grpo_ours CASE MODEL_FOLDER SCRATCH_FOLDER STEPS [KEY=VALUE ...]

The reward, and the agent that gives every request its length, are components of a throw-away distribution in the
scratch folder, found by their entry points like any plugin. What follows STEPS goes to ``--set``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from scripts.bench._grpo_work import LEARNING_RATE, WARM_UP_TOKENS, Gate, Work, find, write_prompts

PLUGIN = """
from dataclasses import replace

from rlhf_core.config import ComponentConfig
from rlhf_core.rewards import Score
from rlhf_core.rollouts import RolloutRequest
from scripts.bench._grpo_work import variety

class VarietyConfig(ComponentConfig):
    name: str = "variety"
    def build(self, ctx):
        return Variety()

class Variety:
    def score(self, samples):
        return [Score(variety(s.completion)) for s in samples]

class LengthsConfig(ComponentConfig):
    name: str = "lengths"
    lengths: tuple[int, ...]
    warm_up: int
    def build(self, ctx):
        return Lengths(self)

class Lengths:
    def __init__(self, config):
        self.config, self.calls = config, 0

    def play(self, groups, seeds, engine, sampling, policy_version):
        requests = [RolloutRequest(g.prompt.id, g.token_ids, i, seed)
                    for g, row in zip(groups, seeds) for i, seed in enumerate(row)]
        assert len(requests) == len(self.config.lengths)
        self.calls += 1
        limits = self.config.lengths if self.calls > 1 else [self.config.warm_up] * len(requests)
        return engine.generate([replace(r, max_tokens=n) for r, n in zip(requests, limits)], sampling, policy_version)
"""
ENTRY_POINTS = """
[rlhf.reward]
variety = rlhf_bench_parts:VarietyConfig
[rlhf.agent]
lengths = rlhf_bench_parts:LengthsConfig
"""


def install_parts(folder: Path) -> None:
    """Put a distribution with the two components on the path."""
    info = folder / "rlhf_bench_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlhf-bench-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "rlhf_bench_parts.py").write_text(PLUGIN)
    sys.path.insert(0, str(folder))


def settings(work: Work, model: str, folder: Path, steps: int) -> list[str]:
    """What ``rlhf train --set`` would be given."""
    special = [f"model.lora={{r: {work.lora_r}, alpha: {2 * work.lora_r}}}"] if work.lora_r else []
    special += ["trainer.precision=bf16"] if work.dtype == "bfloat16" else []
    special += ["model.gradient_checkpointing=true"] if "ours" in work.checkpointed else []
    return [
        "trainer.name=grpo",
        "reward.name=variety",
        f"model.path={model}",
        "model.prompt_format=raw",
        *special,
        f"agent={{name: lengths, lengths: {work.lengths()}, warm_up: {WARM_UP_TOKENS}}}",
        f"dataset={{name: jsonl, path: {write_prompts(folder, work.prompts)}, heldout_fraction: 0}}",
        f"trainer.steps={steps}",
        f"trainer.rollout_batch_size={work.rows}",
        f"trainer.group_size={work.group}",
        f"trainer.micro_batch_size={work.micro_batch}",
        f"trainer.optimizer.learning_rate={LEARNING_RATE}",
        f"trainer.sampling={{max_tokens: {work.longest}, min_tokens: {work.longest}, temperature: 1.0}}",
        "trainer.kl={coefficient: 0.0, track: false}",
        "trainer.eval_every=0",
        "trainer.eval_samples=0",
        "trainer.checkpoint_every=0",
    ]


def main() -> None:
    """Run until told to stop."""
    work, model, folder, steps = find(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    gate = Gate()
    install_parts(folder)
    from rlhf_core.config.load import resolve
    from rlhf_core.plugins.hooks import load_hooks
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.runs.launch.run import plan_run, preflight, run_plan
    from rlhf_core.runs.work import Display

    def progress(step: int, total: int | None, row: Mapping[str, float]) -> None:
        parts = {name: row[name] for name in ("rollout", "update")}
        gate.step_done(parts=parts, tokens_generated=row["tokens_generated"], tokens_trained=row["train/tokens"])

    registry = Registry()
    config = resolve(registry, settings=[*settings(work, model, folder, steps), *sys.argv[5:]])
    hooks = load_hooks()
    plan = plan_run(registry, hooks, config, 1)
    preflight(registry, config, 1)
    run_plan(plan, config, registry, hooks, folder / "run", resume=False, display=Display(progress=progress))


if __name__ == "__main__":
    main()
