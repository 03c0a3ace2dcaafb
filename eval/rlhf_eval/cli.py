"""`rlhf eval`: words after it are suites, unless the first is one of the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rlhf_core.cli import OpenGroup

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_core.models import ModelConfig
    from rlhf_eval.suites import SuiteConfig

F = TypeVar("F", bound=Callable[..., Any])
COMMANDS = {
    "run": ("rlhf_eval.cli:run", "Evaluate a model on suites; `rlhf eval SUITE...` is short for it."),
    "suites": ("rlhf_eval.cli:suites", "List the suites and the styles of their prompts."),
    "compare": (
        "rlhf_eval.cli_compare:compare",
        "Two evaluations on the same prompts: difference with its interval, McNemar.",
    ),
    "episodes": (
        "rlhf_eval.cli_episodes:episodes",
        "Let a model play in an environment: success, pass@k and best-of-N.",
    ),
    "watch": ("rlhf_eval.cli_watch:watch", "Evaluate every checkpoint of a run, finished or still running."),
}


class EvalGroup(OpenGroup):
    """Takes a word that is no command for a suite."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Put ``run`` in front of a suite's name."""
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Name the suites that are no commands of their own; none is imported."""
        from rlhf_core.config import Registry

        names = {entry.name for entry in Registry().entries("benchmark")} - set(self.list_commands(ctx))
        with formatter.section("Suites"):
            formatter.write_text(", ".join(sorted(names)))


@click.group("eval", cls=EvalGroup, path="eval", lazy=COMMANDS)
def evaluation() -> None:
    """Evaluate a model: rlhf eval gsm8k --model M --data test.jsonl.

    The first word is a suite (`rlhf eval suites`) or one of the commands below; further suites may follow.
    """


SUITE_OPTIONS = (
    click.option(
        "--data", "path", multiple=True, metavar="FILE", help="Local copy of its rows, as published (.gz too)."
    ),
    click.option("--dataset", multiple=True, metavar="D", help="Another data set: pocket/arithmetic, a hub id, ..."),
    click.option(
        "--style",
        multiple=True,
        metavar="NAME",
        help="Form of the prompts, as r1_zero; see `rlhf eval suites`.",
    ),
    click.option("--template", multiple=True, metavar="TEXT", help="Text around each question, with {prompt}."),
    click.option("--verifier", multiple=True, metavar="NAME", help="Verifier instead of the suite's own."),
    click.option("--shots", type=click.IntRange(0), help="Worked examples before each question."),
    click.option("--shots-data", multiple=True, metavar="FILE", help="File to take them from, as the training split."),
    click.option("--n", "samples", type=click.IntRange(1), help="Completions of each prompt (best-of-N)."),
    click.option("--limit", type=click.IntRange(1), help="Only the first prompts."),
    click.option("--temperature", type=click.FloatRange(0), help="Default: 0 for one completion, 1 for several."),
    click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of a completion."),
    click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends a completion. Repeatable."),
    click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the suite. Repeatable."),
    click.option("--unsafe-local-execution", is_flag=True, help="Run programs without isolation if there is none."),
)


ENGINE_OPTIONS = (
    click.option(
        "--engine",
        default="native",
        show_default=True,
        metavar="E",
        help="Rollout engine, or the address of a vLLM server: http://127.0.0.1:8000.",
    ),
    click.option(
        "--engine-set",
        "engine_settings",
        multiple=True,
        metavar="a.b=c",
        help="One setting of it, such as python=/vllm-environment/bin/python. Repeatable.",
    ),
)


def engine_options(command: F) -> F:
    for option in reversed(ENGINE_OPTIONS):
        command = option(command)
    return command


by_option = click.option(
    "--by",
    multiple=True,
    metavar="COLUMN",
    help="Also the accuracy for each value of a column of the rows: level, subject, ...; or pass-band, or "
    "pass-band=FILE with the pass rates of another evaluation. Repeatable.",
)


def suite_options(command: F) -> F:
    for option in reversed(SUITE_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("suites", metavar="SUITE...", nargs=-1, required=True)
@click.option("--model", default="pocket", show_default=True, metavar="M", help="Hub id, folder, run or .gguf file.")
@suite_options
@click.option(
    "--best-by",
    multiple=True,
    metavar="R",
    help="Also choose the best of N by this: the folder of a reward model, reward:NAME or judge:NAME. Repeatable.",
)
@by_option
@engine_options
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="The same seed, the same rows."
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where rows and report go; default evals/SUITE-STYLE-MODEL-HASH. Of several suites: FOLDER/SUITE.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Begin nothing new after so long and report what there is; the same command goes on.",
)
@click.option("--failures", type=click.IntRange(0), default=2, show_default=True, help="Examples per category.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def run(
    suites: tuple[str, ...],
    model: str,
    dtype: Any,
    seed: int,
    best_by: tuple[str, ...],
    by: tuple[str, ...],
    engine: str,
    engine_settings: tuple[str, ...],
    out: Path | None,
    failures: int,
    budget: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Evaluate a model on one suite or several. The same command goes on after Ctrl-C or a crash.

    With several suites, say for which one rows and settings are: --data gsm8k=test.jsonl, --set gsm8k.limit=20.
    --set model.KEY=VALUE is the model's: --set model.chat_template_kwargs.enable_thinking=false.

    \b
    rlhf eval gsm8k --model runs/x/final --data test.jsonl --style r1_zero
    rlhf eval gsm8k --model M --data train.jsonl --n 16 --best-by runs/rm/final
    rlhf eval math --model M --data test.jsonl --by level --by subject
    rlhf eval gsm8k ifeval --model M --data gsm8k=test.jsonl --data ifeval=input_data.jsonl --out evals/M
    rlhf eval prompts --dataset pocket/arithmetic --verifier numeric
    rlhf eval lm_eval:gsm8k_cot --model M
    rlhf eval gsm8k --model M --data test.jsonl --engine vllm --engine-set python=/vllm-environment/bin/python
    """
    from rlhf_core.cli import context_of, emit_json, open_registry
    from rlhf_core.config import ConfigError
    from rlhf_eval.harness import Job
    from rlhf_eval.selectors import parse_selector
    from rlhf_eval.several import evaluate_all, options_of

    ctx = context_of(open_registry(), seed=seed)
    model_config = _model_of(model, dtype, options["settings"])
    options["settings"] = tuple(text for text in options["settings"] if not text.startswith("model."))
    shares = options_of(suites, options)
    tasks = [name.partition(":")[2] for name in suites if name.startswith("lm_eval:")]
    if tasks and engine != "native":
        raise ConfigError("a task of lm_eval is sampled by this toolkit's engine", fix="leave out --engine")
    if tasks:
        if len(suites) > 1:
            raise ConfigError("a task of lm_eval stands alone in a command", fix="one command for each of them")
        task = tasks[0]
        more = {"best_by": best_by, "budget": budget, "by": by, "engine_set": engine_settings}
        _run_lm_eval(task, model_config, ctx, out, {**shares[0], **more}, as_json)
        return
    selectors = tuple(parse_selector(text, ctx) for text in best_by)
    jobs = [
        Job(suite_of(ctx, name, **share), model_config, seed, selectors, "", engine, engine_settings, by)
        for name, share in zip(suites, shares)
    ]
    results = evaluate_all(jobs, ctx, out, lambda text: click.echo(text, err=True), budget)
    if as_json:
        named = [{"folder": str(folder), "suite": job.suite.name, **r} for job, (folder, r) in zip(jobs, results)]
        emit_json(named if len(jobs) > 1 else named[0])
        return
    _show(results, failures, several=len(jobs) > 1)


def _show(results: Sequence[tuple[Path, dict[str, Any]]], failures: int, *, several: bool) -> None:
    from rlhf_eval.show import show, show_all
    from rlhf_eval.store import read

    for folder, result in results:
        stored = read(folder)
        show(stored.title, result, stored.rows, failures)
        click.echo(f"\nrows, report and pass rates: {folder}\n")
    if several:
        show_all(results)


def _model_of(path: str, dtype: str, settings: Sequence[str]) -> ModelConfig:
    """The model, with those of the ``--set`` options that are its."""
    from rlhf_core.config import ConfigError, parse_settings
    from rlhf_core.models import ModelConfig

    of_model = parse_settings(text.removeprefix("model.") for text in settings if text.startswith("model."))
    for key, option in {"path": "--model", "dtype": "--dtype"}.items():
        if key in of_model:
            raise ConfigError(f"model.{key} is given by {option}", fix=f"{option} {of_model[key]}")
    return ModelConfig.from_settings({"path": path, "dtype": dtype, **of_model}, "rlhf eval")


def _run_lm_eval(
    task: str, model: ModelConfig, ctx: BuildContext, out: Path | None, options: Mapping[str, Any], as_json: bool
) -> None:
    from rlhf_core.cli import emit_json, table
    from rlhf_eval.lm_harness.run import run_task

    folder, metrics = run_task(task, model, ctx, out, options)
    if as_json:
        emit_json({"folder": str(folder), **metrics})
    else:
        table(("metric", "value"), ((k, f"{v:.4f}") for k, v in metrics.items()))
        click.echo(f"\nrows and report: {folder}")


def suite_of(
    ctx: BuildContext,
    name: str,
    *,
    path: str | None = None,
    dataset: str | None = None,
    settings: tuple[str, ...] = (),
    stop: tuple[str, ...] = (),
    temperature: float | None = None,
    max_tokens: int | None = None,
    shots_data: str | None = None,
    unsafe_local_execution: bool = False,
    **options: Any,
) -> SuiteConfig:
    """The suite's Config from the options of the command; those that are None or empty keep its defaults."""
    from rlhf_core.config import ConfigError, merge_settings, parse_settings
    from rlhf_eval.suites import SuiteConfig

    suite, _, task = name.partition(":")
    if {entry.name for entry in ctx.registry.entries("environment")} & {suite}:
        raise ConfigError(f"'{suite}' is an environment, not a suite of prompts", fix=f"rlhf eval episodes {suite}")
    samples = options.get("samples") or 1
    sampling = {
        "temperature": temperature if temperature is not None else 1.0 if samples > 1 else None,
        "max_tokens": max_tokens,
        "stop": list(stop) or None,
    }
    fields = {
        **options,
        "path": path,
        "shots_path": shots_data,
        "dataset": {"name": dataset} if dataset else None,
        "task": task or None,
        "sampling": {k: v for k, v in sampling.items() if v is not None} or None,
    }
    options_set = {k: v for k, v in fields.items() if v is not None}
    config = ctx.registry.config("benchmark", suite, merge_settings(options_set, parse_settings(settings)))
    if not isinstance(config, SuiteConfig):
        raise ConfigError(f"benchmark '{suite}' is not a suite of prompts", fix="rlhf eval suites")
    return config.resolved(ctx).allow_unsafe() if unsafe_local_execution else config


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def suites(as_json: bool) -> None:
    """List the suites and the styles of their prompts."""
    from rlhf_core.cli import emit_json, open_registry, table
    from rlhf_eval.suites import SuiteConfig

    registry = open_registry()
    rows: list[dict[str, str]] = []
    for entry in registry.entries("benchmark"):
        cls = registry.load("benchmark", entry.qualified)
        if issubclass(cls, SuiteConfig):
            summary = (cls.__doc__ or "").strip().partition("\n")[0]
            rows.append({"suite": entry.name, "styles": ", ".join(cls.styles), "about": summary})
    if as_json:
        emit_json(rows)
    else:
        table(("suite", "styles", ""), (list(r.values()) for r in rows))
