"""The loop of `rlhf data generate` over the prompts that are still to be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from rlhf_core.data import DatasetError
from rlhf_plugin_datagen.items import Item, ItemResult
from rlhf_plugin_datagen.job import KINDS, Job
from rlhf_plugin_datagen.store import Store
from rlhf_plugin_datagen.usage import Meter, Usage, label

PATIENCE = 64
"""Items in a row without an answer, in whole batches, after which errors are taken to be the service's."""


def run(job: Job, say: Callable[[str], None]) -> dict[str, Any]:
    """Ask about every prompt that is not done, batch by batch; each batch is durable before the next is asked.

    Stops early when not one question of a batch was answered, and says why. Errors may be the items' own (a prompt
    beyond a judge's context), so what comes after them is asked, until there are ``PATIENCE`` such items in a row."""
    with ExitStack() as opened, closing(Store(job.output, job.output_settings())) as store:
        check_same_items(job, store)
        waiting = [item for item in job.items if item.id not in store.done]
        meters = [Meter(component) for component in (generator_and_judge(job, opened) if waiting else ())]
        unanswered = run_batches(job, store, waiting, meters, say)
        return summary(job, store, meters, unanswered)


def run_batches(
    job: Job, store: Store, waiting: Sequence[Item], meters: Sequence[Meter], say: Callable[[str], None]
) -> dict[str, str]:
    """Item -> why it got no answer."""
    unanswered: dict[str, str] = {}
    silent = 0
    for first in range(0, len(waiting), job.batch_size):
        batch = waiting[first : first + job.batch_size]
        failed = run_batch(job, store, batch, *meters)
        unanswered |= failed
        cost = sum(m.total.cost_usd for m in meters)
        say(
            f"{job.name}: {first + len(batch)} of {len(waiting)}; {len(store.rows)} rows, "
            f"{len(store.left_out)} left out, {len(unanswered)} without an answer, {cost:.4f} USD"
        )
        silent = silent + len(batch) if len(failed) == len(batch) else 0
        only_errors = all(reason.startswith("error") for reason in failed.values())
        if silent >= PATIENCE or (silent and not only_errors):
            say(f"stopped: nothing of this batch was answered; first: {next(iter(failed.values()))}")
            break
    return unanswered


def generator_and_judge(job: Job, opened: ExitStack) -> list[Any]:
    """One object twice if they are the same; ``opened`` closes them."""
    generator = opened.enter_context(job.ctx.open("judge", job.generator))
    same = job.judge == job.generator
    return [generator, generator if same else opened.enter_context(job.ctx.open("judge", job.judge))]


def run_batch(job: Job, store: Store, batch: Sequence[Item], generator: Meter, judge: Meter) -> dict[str, str]:
    """Generate a batch and write it down; what got no answer is returned with the reason, and not written."""
    produce, _ = KINDS[job.name]
    results = produce(batch, generator, judge, job.settings)
    failed: dict[str, str] = {}
    for result in results:
        item = result.item.id
        if reason := generator.unanswered.pop(item, "") or judge.unanswered.pop(item, ""):
            failed[item] = reason
    answered = [result for result in results if result.item.id not in failed]
    store.write(
        [row_of(result, generator, judge) for result in answered if result.row is not None],
        [row_of(result, generator, judge) for result in answered if result.row is None],
    )
    return failed


def row_of(result: ItemResult, generator: Meter, judge: Meter) -> dict[str, Any]:
    """A row as it is written: id, prompt, what was generated, and what it took."""
    item = result.item
    usage = Usage()
    for meter in (generator, judge):
        usage.merge(vars(meter.items[item.id]))
    content: dict[str, Any] = {}
    if result.row is not None:
        content |= result.row
    else:
        if item.completion is not None:
            content["completion"] = item.completion
        content |= {"left_out": result.left_out, "detail": result.detail}
    return {"id": item.id, "prompt": [dict(m) for m in item.prompt], **content, "usage": vars(usage)}


def check_same_items(job: Job, store: Store) -> None:
    """Refuse an output whose rows have other prompts than the data set under the same ids, or grade other responses."""
    for item in job.items:
        if (row := store.done.get(item.id)) is None:
            continue
        prompt = [dict(m) for m in item.prompt]
        other = ""
        if row.get("prompt") != prompt:
            other = "prompt"
        elif item.completion is not None and row.get("completion", item.completion) != item.completion:
            other = "response"
        if other:
            raise DatasetError(
                f"'{job.output}' has another {other} for id '{item.id}' than the data set",
                fix="go on with the same data set, or choose another --output",
            )


def summary(job: Job, store: Store, meters: Sequence[Meter], unanswered: Mapping[str, str]) -> dict[str, Any]:
    """What was done, what it took this time, and what all rows of the file took."""
    usage_of_call, usage_of_file = Usage(), Usage()
    for meter in meters:
        usage_of_call.merge(vars(meter.total))
    for row in (*store.rows, *store.left_out):
        usage_of_file.merge(row.get("usage", {}))
    reasons = Counter(str(r["left_out"]) for r in store.left_out)
    return {
        "kind": job.name,
        "output": str(store.path),
        "prompts": len(job.items),
        "rows": len(store.rows),
        "left_out": len(store.left_out),
        "left_out_reasons": dict(reasons),
        "unanswered": len(unanswered),
        "first_unanswered": next(iter(unanswered.values()), None),
        "generator": label(job.generator),
        "judge": label(job.judge),
        "usage": vars(usage_of_call),
        "usage_of_file": vars(usage_of_file),
    }
