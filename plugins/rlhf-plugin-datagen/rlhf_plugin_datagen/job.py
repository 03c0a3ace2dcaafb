"""One call of `rlhf data generate`, checked before anything is asked: what is generated, by which models, from what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of
from rlhf_core.config import BuildContext, ComponentConfig, ConfigError, Registry, parse_settings
from rlhf_core.data import Datasets
from rlhf_plugin_datagen.demonstrations import demonstrations, estimate_demonstrations
from rlhf_plugin_datagen.grades import estimate_grades, grades
from rlhf_plugin_datagen.items import EstimateItem, Item, Produce, Settings
from rlhf_plugin_datagen.preferences import estimate_preferences, preferences
from rlhf_plugin_datagen.principles import read_constitution
from rlhf_plugin_datagen.usage import answer_settings, estimate_for, label
from rlhf_plugin_rubric.rubric import load_rubric


@dataclass(frozen=True)
class Job:
    """Everything that a call decides, checked, before anything is asked or loaded."""

    name: str
    items: list[Item]
    generator: ComponentConfig
    judge: ComponentConfig
    settings: Settings
    output: Path
    batch_size: int
    ctx: BuildContext

    def output_settings(self) -> dict[str, Any]:
        """What must be the same for rows to belong into one file."""
        settings = self.settings
        if self.name == "grades":
            judged_by: dict[str, Any] = {"rubric": settings.rubric.model_dump(mode="json")}
        else:
            judged_by = {"constitution": list(settings.principles)}
        return {
            "kind": self.name,
            "generator": answer_settings(self.generator),
            "judge": answer_settings(self.judge),
            **judged_by,
            "seed": settings.seed,
            "max_tokens": settings.max_tokens,
            "judge_tokens": settings.judge_tokens,
            "temperature": settings.temperature,
        }


def make_job(registry: Registry, kind: str, output: Path, options: Mapping[str, Any]) -> Job:
    check_kind_and_judge(registry, kind, options)
    generator = generator_config(registry, options, kind)
    settings = Settings(
        principles=read_constitution(options["constitution"]),
        rubric=load_rubric(options["rubric"]),
        seed=options["seed"],
        max_tokens=options["max_tokens"] or (64 if label(generator) == "local (pocket)" else 256),
        judge_tokens=options["judge_tokens"],
        temperature=options["temperature"],
    )
    judge = generator
    if options["judge_name"] is not None:
        judge = registry.config("judge", options["judge_name"], parse_settings(options["settings"]))
    ctx = context_of(registry, seed=options["seed"], dataset={"name": options["dataset"], "heldout_fraction": 0.0})
    items = items_of(ctx.datasets, kind)[: options["count"]]
    if all(item.completion is not None for item in items):
        generator = judge  # there is nothing to write, and no model to load for it
    return Job(kind, items, generator, judge, settings, output, options["batch_size"], ctx)


def check_kind_and_judge(registry: Registry, kind: str, options: Mapping[str, Any]) -> None:
    """Refuse an unknown kind, and a call without a judge where nothing else can take its part."""
    if kind not in KINDS:
        raise ConfigError(f"there is no kind of data '{kind}'", fix=f"one of: {', '.join(KINDS)}")
    generator_judges = kind == "sft" and (options["model"] or options["generator"])
    if options["judge_name"] is None and not generator_judges:
        names = ", ".join(sorted({entry.name for entry in registry.entries("judge")}))
        raise ConfigError("no judge is named", fix=f"--judge NAME, one of: {names}")


def generator_config(registry: Registry, options: Mapping[str, Any], kind: str) -> ComponentConfig:
    """The model that writes responses: ``--model``, ``--generator``, or else the judge (sft) or the pocket model."""
    model, name, settings = options["model"], options["generator"], options["generator_settings"]
    if model and name:
        raise ConfigError(
            "--model and --generator are both given",
            why="each names the model that writes the responses",
            fix="drop one; --model M is --generator local --generator-set model.path=M",
        )
    if name:
        return registry.config("judge", name, parse_settings(settings))
    if not model and kind == "sft":
        return registry.config("judge", options["judge_name"], parse_settings(options["settings"]))
    return registry.config("judge", "local", parse_settings((*settings, f"model.path={model or 'pocket'}")))


def items_of(datasets: Datasets, kind: str) -> list[Item]:
    """Prompts of the training split; for grades, with their completions where the rows have some."""
    if kind == "grades" and has_completions(datasets):
        return [Item(d.id, d.prompt, d.completion) for d in datasets.demonstrations("train")]
    return [Item(p.id, p.messages) for p in datasets.prompts("train")]


def has_completions(datasets: Datasets) -> bool:
    """Whether a row has a response; then the data set's readers see to it that all have one."""
    return any(
        source.reader.find(record, "completion", "response", "output") is not None
        for source in datasets.sources
        if not hasattr(source.component, "demonstrations")  # kept apart there
        for record in source.records("rows", "train", Counter())
    )


def estimate(job: Job) -> dict[str, Any]:
    """Requests, tokens and dollars of what is still to be done; nothing is asked, loaded or written."""
    finished_ids = {str(row.get("id")) for row in finished_rows(job.output)}
    generator, judge = estimate_for(job.generator), estimate_for(job.judge)
    waiting = [item for item in job.items if item.id not in finished_ids]
    _, estimate_item = KINDS[job.name]
    for item in waiting:
        estimate_item(item, generator, judge, job.settings)
    return {
        "kind": job.name,
        "prompts": len(job.items),
        "done": len(job.items) - len(waiting),
        "generator": generator.to_json(),
        "judge": judge.to_json(),
        "requests": generator.requests + judge.requests,
        "cost_usd": round(generator.cost_usd + judge.cost_usd, 6),
    }


def finished_rows(output: Path) -> list[dict[str, Any]]:
    """Rows that an earlier call has written, left out ones included. Writes nothing."""
    from rlhf_core.data import read_jsonl

    left_out = output.with_name(f"{output.name}.left_out.jsonl")
    return [*read_jsonl(output), *read_jsonl(left_out)]


KINDS: Mapping[str, tuple[Produce, EstimateItem]] = {
    "preferences": (preferences, estimate_preferences),
    "sft": (demonstrations, estimate_demonstrations),
    "grades": (grades, estimate_grades),
}
