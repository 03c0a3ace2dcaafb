"""Our side of a comparison: ``rlhf train`` itself, step by step: ``-m scripts.bench._ours CASE MODEL SCRATCH STEPS``.

The reward, the environment and the agent that gives every request its length come from a throw-away distribution. The
environment works in processes of its own, as in any run; TRL's is called in its trainer's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts._distribution import install
from scripts.bench._work import (
    BUDGET,
    LEARNING_RATE,
    WARM_UP,
    WARM_UP_TOKENS,
    Gate,
    ToolWork,
    Work,
    is_call,
    work_of,
    write_prompts,
)

PLUGIN = Path(__file__).with_name("_ours_parts.txt").read_text()
ENTRY_POINTS = """
[rlhf.reward]
variety = rlhf_bench_parts:VarietyConfig
[rlhf.agent]
lengths = rlhf_bench_parts:LengthsConfig
[rlhf.environment]
book = rlhf_bench_parts:BookConfig
"""


def settings(work: Work | ToolWork, model: str, folder: Path, steps: int) -> list[str]:
    """What ``rlhf train --set`` would be given."""
    tools = isinstance(work, ToolWork)
    most = BUDGET if tools else work.longest
    return [
        "trainer.name=grpo",
        "reward.name=variety",
        f"model.path={model}",
        *(of_tools(work) if tools else of_completions(work)),
        f"dataset={{name: jsonl, path: {write_prompts(folder, work.prompts)}, heldout_fraction: 0}}",
        f"trainer.steps={steps}",
        f"trainer.rollout_batch_size={work.rows}",
        f"trainer.group_size={work.group}",
        f"trainer.micro_batch_size={work.micro_batch}",
        f"trainer.optimizer.learning_rate={LEARNING_RATE}",
        f"trainer.sampling={{max_tokens: {most}, min_tokens: {most}, temperature: 1.0}}",
        "trainer.kl={coefficient: 0.0, track: false}",
        "trainer.eval_every=0",
        "trainer.eval_samples=0",
        "trainer.checkpoint_every=0",
        "rollout.compile=true",
    ]


def of_completions(work: Work) -> list[str]:
    special = [f"model.lora={{r: {work.lora_r}, alpha: {2 * work.lora_r}}}"] if work.lora_r else []
    special += ["trainer.precision=bf16"] if work.dtype == "bfloat16" else []
    special += ["model.gradient_checkpointing=true"] if "ours" in work.checkpointed else []
    agent = f"agent={{name: lengths, lengths: {work.lengths()}, warm_up: {WARM_UP_TOKENS}}}"
    return ["model.prompt_format=raw", *special, agent]


def of_tools(work: ToolWork) -> list[str]:
    return ["environment.name=book", f"agent={{name: multi_turn, max_turns: {work.turns[1]}}}"]


def give_turns_their_lengths(work: ToolWork) -> None:
    """Every turn has the case's number of tokens, and is a call by the case's rule."""
    from rlhf_core.models.prompt_format import Formatter
    from rlhf_core.types.messages import AssistantTurn, ToolCall
    from rlhf_plugin_episodes.episode import Episode

    ask, read, table = Episode.request, Formatter.parse, work.lengths()
    steps: dict[str, int] = {}
    prompts: dict[str, int] = {}

    def request(self: Any, most: int | None) -> Any:
        position = prompts.setdefault(self.prompt.id, len(prompts))
        steps[self.name] = steps.get(self.name, 0) + (self.policy_turns == 0)
        lengths = WARM_UP if steps[self.name] == 1 else table[position * work.group + self.index]
        return replace(ask(self, most), max_tokens=lengths[self.policy_turns])

    def parse(self: Any, completion: Any, tools: Any, *, cut: bool = False, earlier: int = 0) -> AssistantTurn:
        text = read(self, completion, tools, cut=False, earlier=earlier).content
        call = ToolCall("search", {"query": "clips"}, id=f"call{earlier:05d}")
        return AssistantTurn(text, (call,) if is_call(len(completion)) else ())

    Episode.request, Formatter.parse = request, parse


def main() -> None:
    work, model, folder, steps = work_of(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    gate = Gate()
    install(folder / "parts", "rlhf_bench_parts", PLUGIN, ENTRY_POINTS)
    if isinstance(work, ToolWork):
        give_turns_their_lengths(work)
    from rlhf_core.config.load import resolve
    from rlhf_core.plugins.hooks import load_hooks
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.runs.launch.run import plan_run, preflight, run_plan
    from rlhf_core.runs.work import Display

    def progress(step: int, total: int | None, row: Mapping[str, float]) -> None:
        parts = {name: row[name] for name in ("rollout", "update")}
        gate.step_done(parts=parts, tokens_generated=row["tokens_generated"], tokens_trained=row["train/tokens"])

    registry = Registry()
    config = resolve(registry, settings=settings(work, model, folder, steps))
    hooks = load_hooks()
    plan = plan_run(registry, hooks, config, 1)
    preflight(registry, config, 1)
    run_plan(plan, config, registry, hooks, folder / "run", resume=False, display=Display(progress=progress))


if __name__ == "__main__":
    main()
