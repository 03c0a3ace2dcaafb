"""`rlhf trace show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli import complete, emit_json, print_turn
from rlhf_core.config import ConfigError, did_you_mean
from rlhf_core.data import read_jsonl
from rlhf_core.runs import StoredRun

if TYPE_CHECKING:
    from rlhf_core.runs import StoredRun

Row = Mapping[str, Any]
SET_ASIDE = "set_aside"
"""Event of a prompt that was sampled and scored but not trained on."""


@click.command()
@click.argument("run", shell_complete=complete.runs)
@click.option("--step", type=click.IntRange(1), metavar="N", required=True, help="Which training step.")
@click.option("--prompt", metavar="ID", help="Prompt id, or the end of one; default is the step's first.")
@click.option("--json", "as_json", is_flag=True, help="For machines; tokens and logprobs included.")
def show(run: str, step: int, prompt: str | None, as_json: bool) -> None:
    """One prompt through every stage of a step: rollouts, rewards, advantages, update.

    Of an offline run: one example's texts, and what every example of the batch cost.

    \b
    rlhf trace show runs/grpo-20260131-142501 --step 3
    """
    from rlhf_plugin_report.read import sampled_trace

    found = StoredRun.find(run)
    rows = rows_of(found, step)
    warnings = [r for r in rows if r.get("event") == "warning"]
    update = next((r for r in rows if r.get("event") == "update"), {})
    prompts = [r for r in rows if r.get("event") in ("prompt", SET_ASIDE)]
    offline = not prompts and "rows" in update
    chosen = pick(update["rows"] if offline else prompts, prompt)
    if as_json:
        emit_json({"step": step, "prompt": chosen, "update": update, "warnings": warnings})
        return
    if offline and chosen is not None:
        _print_example(step, chosen, update)
        _print_warnings(warnings)
        return
    if chosen is not None:
        _print_prompt(step, chosen)
    elif note := sampled_trace(found.plan.config):
        click.echo(note)
    _print_update(update)
    _print_warnings(warnings)
    others = [str(r["prompt_id"]) for r in prompts if r is not chosen]
    if others:
        click.echo(f"\nother prompts of step {step}: " + ", ".join(others))


def rows_of(run: StoredRun, step: int) -> list[Row]:
    step_rows: list[Row] = []
    steps: set[int] = set()
    for row in read_jsonl(run.path / "trace.jsonl"):
        steps |= {row["step"]} - {0}  # step 0 holds what was recorded about the machine before training
        if row["step"] == step:
            step_rows.append(row)
    if not step_rows:
        why = f"it has steps {min(steps)} to {max(steps)}" if steps else "no step of it is traced yet"
        raise ConfigError(f"run '{run.path}' has no step {step}", why=why, fix=f"--step {max(steps)}" if steps else "")
    return step_rows


def pick(prompts: Sequence[Row], name_or_end: str | None) -> Row | None:
    """The prompt or example to show; None where the step has none and none is asked for."""
    if name_or_end is None:
        return prompts[0] if prompts else None
    ids = [str(r.get("prompt_id", r.get("id"))) for r in prompts]
    for fits in (lambda name: name == name_or_end, lambda name: name.endswith(f"/{name_or_end}")):
        match = next((row for row, name in zip(prompts, ids) if fits(name)), None)
        if match is not None:
            return match
    near = did_you_mean(name_or_end, [*ids, *(n.rsplit("/", 1)[-1] for n in ids)])
    raise ConfigError(
        f"no prompt '{name_or_end}' in this step",
        why="its prompts: " + ", ".join(ids[:8]),
        fix=near or "leave --prompt out for the first",
    )


def _print_prompt(step: int, row: Row) -> None:
    tokens = f", {len(row['prompt_ids'])} tokens" if "prompt_ids" in row else ""
    note = "  (set aside: its scores are equal)" if row["event"] == SET_ASIDE else ""
    click.secho(f"step {step}, prompt {row['prompt_id']}{note}", bold=True)
    _print_stage("prompt", f"from source '{row['source']}'{tokens}")
    click.echo(_indent(row["prompt"]))
    _print_stage("rollouts", f"{len(row['completions'])} completions of policy {versions_text(row['completions'])}")
    for i, completion in enumerate(row["completions"]):
        ended = f"({completion['tokens']} tokens, ended by {completion['finish_reason']})"
        click.echo(_indent(f"#{i}  {completion['text']!r}  {ended}"))
        for turn in completion.get("turns", ()):
            print_turn(turn)
        for name, value in completion.get("info", {}).items():
            click.echo(_indent(f"    {name} {value}"))
    _print_stage("rewards", "score of each completion")
    for i, completion in enumerate(row["completions"]):
        click.echo(_indent(f"#{i}  {_score(completion)}"))
    _print_stage("advantages", "of each completion, relative to its group")
    for i, completion in enumerate(row["completions"]):
        value = completion["advantage"]
        click.echo(_indent(f"#{i}  " + ("none: not trained on" if value is None else f"{value:+.4f}")))


def versions_text(completions: Sequence[Row]) -> str:
    """Example: ``version 3``, or where weights came while completions were sampled: ``versions 3 to 5``."""
    numbers = [c["policy_version"] for c in completions]
    numbers += [span[2] for c in completions for span in c.get("versions", ())]
    return f"version {numbers[0]}" if min(numbers) == max(numbers) else f"versions {min(numbers)} to {max(numbers)}"


def _print_example(step: int, chosen: Row, update: Row) -> None:
    """One example of an offline batch, then the figures of all."""
    click.secho(f"step {step}, example {chosen['id']}", bold=True)
    texts = {k: v for k, v in chosen.items() if isinstance(v, str) and k != "id"}
    for name, text in texts.items():
        click.echo(f"\n{name}")
        click.echo(_indent(text))
    if not texts:
        click.echo("\nits texts are not traced: trainer.trace_prompts says of how many examples they are")
    names = ("tokens", *(k for k in ("loss", "chosen", "rejected", "margin") if k in chosen))
    width = max(len(str(r["id"])) for r in update["rows"])
    _print_stage("batch", f"{len(update['rows'])} examples")
    click.echo(f"    {'':{width}}" + "".join(f"{n:>10}" for n in names))
    for row in update["rows"]:
        click.echo(f"    {row['id']:{width}}" + "".join(_cell(row.get(name)) for name in names))
    _print_update(update)


def _cell(value: float | None) -> str:
    return f"{value:10.4f}" if isinstance(value, float) else f"{'' if value is None else value:>10}"


def _score(completion: Row) -> str:
    value = completion["status"] if completion["score"] is None else f"{completion['score']:.4f}"
    parts = ", ".join(f"{k} {v:.3g}" for k, v in completion["parts"].items())
    detail = f"  {completion['detail']}" if completion.get("detail") else ""
    return value + (f"  ({parts})" if parts else "") + detail


def _print_update(update: Row) -> None:
    _print_stage("update", "from the whole batch")
    for key, value in update.get("metrics", {}).items():
        click.echo(_indent(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"))


def _print_warnings(rows: Sequence[Row]) -> None:
    if rows:
        _print_stage("warnings", "of monitors in this step")
    for row in rows:
        ended = "  (ended the run)" if row.get("stops") else ""
        click.echo(_indent(f"{row.get('monitor', '')}: {row.get('text', '')}{ended}"))


def _print_stage(name: str, what: str) -> None:
    click.echo(f"\n{name:<11}{what}")


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in str(text).splitlines())
