"""One call of `rlhf data generate`: what is asked of whom, and the loop over the prompts that are still to be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rlhf_core.api import BuildContext, ComponentConfig, ConfigError, DatasetError, ModelConfig
from rlhf_core.sdk import Datasets, Registry, check_component, component_of, context_of, quiet_libraries, table
from rlhf_plugin_datagen.kinds import KINDS, Item, Kind, Made, Settings
from rlhf_plugin_datagen.makers import Meter, Usage, deciding, estimate_for, who
from rlhf_plugin_datagen.principles import read_constitution
from rlhf_plugin_datagen.store import Store
from rlhf_plugin_rubric.rubric import load_rubric

PATIENCE = 64
"""Items in a row without an answer, in whole batches, after which errors are taken to be the service's."""


@dataclass(frozen=True)
class Job:
    """Everything that a call decides, checked, before anything is asked or loaded."""

    name: str
    kind: Kind
    items: list[Item]
    generator: ComponentConfig
    judge: ComponentConfig
    settings: Settings
    output: Path
    batch_size: int
    ctx: BuildContext

    def deciding(self) -> dict[str, Any]:
        """What must be the same for rows to belong into one file."""
        s = self.settings
        rubric = self.name == "grades"
        uses = {"rubric": s.rubric.model_dump(mode="json")} if rubric else {"constitution": list(s.principles)}
        return {
            "kind": self.name,
            "generator": deciding(self.generator),
            "judge": deciding(self.judge),
            **uses,
            "seed": s.seed,
            "max_tokens": s.max_tokens,
            "judge_tokens": s.judge_tokens,
            "temperature": s.temperature,
        }


def make_job(registry: Registry, kind: str, output: Path, options: Mapping[str, Any]) -> Job:
    """Read and check the options.

    Raises:
        UserError: the first that cannot be used.
    """
    if kind not in KINDS:
        raise ConfigError(f"there is no kind of data '{kind}'", fix=f"one of: {', '.join(KINDS)}")
    if options["judge_name"] is None and (kind != "sft" or not (options["model"] or options["generator"])):
        known = ", ".join(sorted({e.name for e in registry.entries("judge")}))
        raise ConfigError("nobody is to judge", fix=f"--judge NAME, one of: {known}")
    settings = Settings(
        read_constitution(options["constitution"]),
        load_rubric(options["rubric"]),
        options["seed"],
        options["max_tokens"],
        options["judge_tokens"],
        options["temperature"],
    )
    generator = writer(registry, options, kind)
    judge = (
        generator
        if options["judge_name"] is None
        else component_of(registry, "judge", options["judge_name"], settings=options["settings"])
    )
    ctx = context_of(registry, seed=options["seed"], dataset={"name": options["dataset"], "heldout_fraction": 0.0})
    items = items_of(ctx.datasets, kind)[: options["count"]]
    if all(item.completion is not None for item in items):
        generator = judge  # there is nothing to write, and no model to load for it
    return Job(kind, KINDS[kind], items, generator, judge, settings, output, options["batch_size"], ctx)


def writer(registry: Registry, options: Mapping[str, Any], kind: str) -> ComponentConfig:
    """Who writes responses: ``--model``, ``--generator``, or without either the judge (sft) or the pocket model.

    Raises:
        ConfigError: both are given.
    """
    model, name, given = options["model"], options["generator"], options["generator_settings"]
    if model and name:
        raise ConfigError(
            "--model and --generator are both given",
            why="each says who writes the responses",
            fix="drop one; --model M is --generator local --generator-set model.path=M",
        )
    if name:
        return component_of(registry, "judge", name, settings=given)
    if not model and kind == "sft":
        return component_of(registry, "judge", options["judge_name"], settings=options["settings"])
    return component_of(registry, "judge", "local", settings=(*given, f"model.path={model or 'pocket'}"))


def items_of(datasets: Datasets, kind: str) -> list[Item]:
    """Prompts of the training split; for grades, with their completions where the rows have some.

    Raises:
        DatasetError: no rows, malformed rows, or an empty response to grade.
    """
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


def foresee(job: Job) -> dict[str, Any]:
    """Requests, tokens and dollars of what is still to be done; nothing is asked, loaded or written."""
    done = {str(row.get("id")) for row in finished(job.output)}
    writes, judges = estimate_for(job.generator), estimate_for(job.judge)
    waiting = [item for item in job.items if item.id not in done]
    for item in waiting:
        job.kind.foresee(item, writes, judges, job.settings)
    return {
        "kind": job.name,
        "prompts": len(job.items),
        "done": len(job.items) - len(waiting),
        "generator": writes.to_json(),
        "judge": judges.to_json(),
        "requests": writes.requests + judges.requests,
        "cost_usd": round(writes.cost_usd + judges.cost_usd, 6),
    }


def finished(output: Path) -> list[dict[str, Any]]:
    """Rows that an earlier call has written, left out ones included. Writes nothing."""
    from rlhf_core.sdk import read_jsonl

    return [row for p in (output, output.with_name(f"{output.name}.left_out.jsonl")) for row in read_jsonl(p)]


def run(job: Job, say: Callable[[str], None]) -> dict[str, Any]:
    """Ask about every prompt that is not done, batch by batch; each batch is durable before the next is asked.

    Stops early when not one question of a batch was answered, and says why. Errors may be the items' own (a prompt
    beyond a judge's context), so what comes after them is asked, until there are ``PATIENCE`` such items in a row.

    Raises:
        UserError: the output cannot be used.
    """
    store = Store(job.output, job.deciding())
    built: list[Any] = []
    try:
        check_same_items(job, store)
        waiting = [item for item in job.items if item.id not in store.done]
        if waiting:
            built = build(job)
        meters = [Meter(b) for b in built]
        unanswered: dict[str, str] = {}
        silent = 0
        for first in range(0, len(waiting), job.batch_size):
            batch = waiting[first : first + job.batch_size]
            failed = step(job, store, batch, *meters)
            unanswered |= failed
            say(
                f"{job.name}: {first + len(batch)} of {len(waiting)}; {len(store.rows)} rows, "
                f"{len(store.left_out)} left out, {len(unanswered)} without an answer, {spent(meters):.4f} USD"
            )
            silent = silent + len(batch) if len(failed) == len(batch) else 0
            if silent >= PATIENCE or (silent and not all(why.startswith("error") for why in failed.values())):
                say(f"stopped: nothing of this batch was answered; first: {next(iter(failed.values()))}")
                break
        return report(job, store, meters, unanswered)
    finally:
        store.close()
        for component in {id(b): b for b in built}.values():
            if callable(close := getattr(component, "close", None)):
                close()


def build(job: Job) -> list[Any]:
    """Generator and judge; one object if they are the same."""
    if any(isinstance(getattr(config, "model", None), ModelConfig) for config in (job.generator, job.judge)):
        quiet_libraries()
    generator = job.generator.build(job.ctx)
    judge = generator if job.judge == job.generator else job.judge.build(job.ctx)
    for component, config in ((generator, job.generator), (judge, job.judge)):
        check_component("judge", component, config.name)
    return [generator, judge]


def step(job: Job, store: Store, batch: Sequence[Item], generator: Meter, judge: Meter) -> dict[str, str]:
    """Make a batch and write it down; what got no answer is returned with the reason, and not written."""
    made = job.kind.produce(batch, generator, judge, job.settings)
    failed = {
        m.item.id: reason
        for m in made
        if (reason := generator.unanswered.pop(m.item.id, "") or judge.unanswered.pop(m.item.id, ""))
    }
    kept = [m for m in made if m.item.id not in failed]
    store.write(
        [row_of(m, generator, judge) for m in kept if m.row is not None],
        [row_of(m, generator, judge) for m in kept if m.row is None],
    )
    return failed


def row_of(made: Made, generator: Meter, judge: Meter) -> dict[str, Any]:
    """A row as it is written: id, prompt, what was made, and what it took."""
    usage = Usage()
    for meter in (generator, judge):
        usage.merge(vars(meter.items[made.item.id]))
    given = {} if made.item.completion is None else {"completion": made.item.completion}
    what = made.row if made.row is not None else {**given, "left_out": made.left_out, "detail": made.detail}
    return {"id": made.item.id, "prompt": [dict(m) for m in made.item.prompt], **what, "usage": vars(usage)}


def check_same_items(job: Job, store: Store) -> None:
    """Refuse an output whose rows have other prompts than the data set under the same ids, or grade other responses.

    Raises:
        DatasetError: names the first.
    """
    for item in job.items:
        if (row := store.done.get(item.id)) is None:
            continue
        prompt = [dict(m) for m in item.prompt]
        said = item.completion if item.completion is None else row.get("completion", item.completion)
        other = "prompt" if row.get("prompt") != prompt else "response" if said != item.completion else ""
        if other:
            raise DatasetError(
                f"'{job.output}' has another {other} for id '{item.id}' than the data set",
                fix="go on with the same data set, or choose another --output",
            )


def report(job: Job, store: Store, meters: Sequence[Meter], unanswered: Mapping[str, str]) -> dict[str, Any]:
    """What was done, what it took this time, and what all rows of the file took."""
    now, whole = Usage(), Usage()
    for meter in meters:
        now.merge(vars(meter.total))
    for row in (*store.rows, *store.left_out):
        whole.merge(row.get("usage", {}))
    reasons = Counter(str(r["left_out"]) for r in store.left_out)
    return {
        "kind": job.name,
        "output": str(store.path),
        "rows": len(store.rows),
        "left_out": len(store.left_out),
        "left_out_reasons": dict(reasons),
        "unanswered": len(unanswered),
        "first_unanswered": next(iter(unanswered.values()), None),
        "generator": who(job.generator),
        "judge": who(job.judge),
        "usage": vars(now),
        "usage_of_file": vars(whole),
    }


def spent(meters: Sequence[Meter]) -> float:
    """Dollars of this call."""
    return sum(m.total.cost_usd for m in meters)


def show(result: Mapping[str, Any]) -> None:
    """For people."""
    click.echo(f"{result['rows']} rows in {result['output']}")
    if result["left_out"]:
        why = ", ".join(f"{k} {n}" for k, n in sorted(result["left_out_reasons"].items()))
        click.echo(f"{result['left_out']} left out ({why}), in {result['output']}.left_out.jsonl")
    if result["unanswered"]:
        click.echo(
            f"{result['unanswered']} without an answer (first: {result['first_unanswered']}); the same command "
            "asks them again"
        )
    for name, key in (("this call", "usage"), ("all rows", "usage_of_file")):
        u = result[key]
        click.echo(
            f"{name}: {u['requests']} answers ({u['cached']} kept from before), {u['input_tokens']} + "
            f"{u['output_tokens']} tokens, {u['cost_usd']:.4f} USD"
        )


def show_estimate(found: Mapping[str, Any]) -> None:
    """For people."""
    click.echo(f"{found['kind']}: {found['prompts']} prompts, {found['done']} of them done; nothing is asked now\n")
    table(
        ("", "asked", "requests", "input tokens", "output tokens", "USD"),
        [
            (
                role,
                e["asked"],
                e["requests"],
                f"about {e['input_tokens']}",
                f"at most {e['output_tokens']}",
                f"{e['cost_usd']:.4f}",
            )
            for role, e in (("responses", found["generator"]), ("judge", found["judge"]))
        ],
    )
    click.echo(
        f"\nabout {found['cost_usd']:.4f} USD, with every answer at its longest; a repair of an unusable answer "
        "and retries come on top"
    )
