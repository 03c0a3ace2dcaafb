"""Our side: ``rlhf train --env book`` itself.

    python -m scripts.bench._tool_ours CASE MODEL_FOLDER SCRATCH_FOLDER STEPS [KEY=VALUE ...]

Environment and reward are components of a throw-away distribution in the scratch folder. The environment works in
processes of its own, as in any run; TRL's is called in its trainer's. What follows STEPS goes to ``--set``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.bench._grpo_work import LEARNING_RATE, Gate, write_prompts
from scripts.bench._tool_work import BUDGET, CASES, WARM_UP, ToolWork, is_call

PLUGIN = """
from typing import ClassVar

from transformers.utils.chat_template_utils import get_json_schema

from rlhf_core.config import ComponentConfig
from rlhf_core.rewards import Score
from rlhf_plugin_episodes.config import EnvironmentConfig
from scripts.bench._grpo_work import variety
from scripts.bench._tool_work import search

class BookConfig(EnvironmentConfig):
    name: str = "book"
    component: ClassVar[str] = "rlhf_bench_tools:Book"
    tool_specs: ClassVar = (get_json_schema(search),)
    scores: ClassVar[bool] = False
    pure: ClassVar[bool] = True

class Book:
    def __init__(self, config):
        pass
    def reset(self, prompt, seed):
        pass
    def step(self, calls):
        return [search(**call.arguments) for call in calls]
    def score(self, sample):
        return None

class VarietyConfig(ComponentConfig):
    name: str = "variety"
    def build(self, ctx):
        return Variety()

class Variety:
    def score(self, samples):
        return [Score(variety(s.completion)) for s in samples]
"""
ENTRY_POINTS = """
[rlhf.reward]
variety = rlhf_bench_tools:VarietyConfig
[rlhf.environment]
book = rlhf_bench_tools:BookConfig
"""


def install_parts(folder: Path) -> None:
    """Put a distribution with the two components on the path."""
    info = folder / "rlhf_bench_tools-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlhf-bench-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "rlhf_bench_tools.py").write_text(PLUGIN)
    sys.path.insert(0, str(folder))


def give_turns_their_lengths(work: ToolWork) -> None:
    """Every turn has the case's number of tokens, and is a call by the case's rule."""
    from rlhf_core.data.tool_call_parser import AssistantTurn
    from rlhf_core.models.prompt_format import Formatter
    from rlhf_core.types.messages import ToolCall
    from rlhf_plugin_episodes.episode import Episode

    ask, read, table = Episode.request, Formatter.parse, work.lengths()
    steps: dict[str, int] = {}
    prompts: dict[str, int] = {}

    def request(self: Any, most: int | None) -> Any:
        place = prompts.setdefault(self.prompt.id, len(prompts))
        steps[self.name] = steps.get(self.name, 0) + (self.policy_turns == 0)
        lengths = WARM_UP if steps[self.name] == 1 else table[place * work.group + self.index]
        return replace(ask(self, most), max_tokens=lengths[self.policy_turns])

    def parse(self: Any, completion: Any, tools: Any, *, cut: bool = False, earlier: int = 0) -> AssistantTurn:
        text = read(self, completion, tools, cut=False, earlier=earlier).content
        call = ToolCall("search", {"query": "clips"}, id=f"call{earlier:05d}")
        return AssistantTurn(text, (call,) if is_call(len(completion)) else ())

    Episode.request, Formatter.parse = request, parse


def settings(work: ToolWork, model: str, folder: Path, steps: int) -> list[str]:
    """What ``rlhf train --set`` would be given."""
    return [
        "trainer.name=grpo",
        "environment.name=book",
        "reward.name=variety",
        f"model.path={model}",
        f"agent={{name: multi_turn, max_turns: {work.turns[1]}}}",
        f"dataset={{name: jsonl, path: {write_prompts(folder, work.prompts)}, heldout_fraction: 0}}",
        f"trainer.steps={steps}",
        f"trainer.rollout_batch_size={work.rows}",
        f"trainer.group_size={work.group}",
        f"trainer.micro_batch_size={work.micro_batch}",
        f"trainer.optimizer.learning_rate={LEARNING_RATE}",
        f"trainer.sampling={{max_tokens: {BUDGET}, min_tokens: {BUDGET}, temperature: 1.0}}",
        "trainer.kl={coefficient: 0.0, track: false}",
        "trainer.eval_every=0",
        "trainer.eval_samples=0",
        "trainer.checkpoint_every=0",
    ]


def main() -> None:
    """Run until told to stop."""
    work, model, folder, steps = CASES[sys.argv[1]], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    gate = Gate()
    install_parts(folder / "parts")
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
    config = resolve(registry, settings=[*settings(work, model, folder, steps), *sys.argv[5:]])
    hooks = load_hooks()
    plan = plan_run(registry, hooks, config, 1)
    preflight(registry, config, 1)
    run_plan(plan, config, registry, hooks, folder / "run", resume=False, display=Display(progress=progress))


if __name__ == "__main__":
    main()
