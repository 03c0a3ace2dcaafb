"""`rlhf eval SUITE --agent A --backend B` for suites that agents play."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
OPTIONS = (
    click.argument("more", metavar="[SUITE...]", nargs=-1),
    click.option(
        "--agent",
        "agents",
        multiple=True,
        metavar="A",
        help="Who plays; default react (of code_debug code_executor). Repeatable.",
    ),
    click.option("--backend", metavar="B", help="native (default), openai, anthropic, scripted or replay."),
    click.option("--model", metavar="M", help="Of native: hub id, folder, run or .gguf file; else the service's name."),
    click.option(
        "--script", type=click.Choice(["oracle", "wrong", "credulous"]), help="Who answers for the backend scripted."
    ),
    click.option("--replay", metavar="FILE", help="Trajectories for the backend replay: a rows.jsonl or its folder."),
    click.option("--data", multiple=True, metavar="FILE", help="A suite's rows; of several suites SUITE=FILE."),
    click.option("--category", "--tier", "category", multiple=True, metavar="C", help="Only these. Repeatable."),
    click.option("--levels", metavar="N,N", help="Only tasks of these levels."),
    click.option("--max-per-category", type=click.IntRange(1), help="Only the first tasks of each category."),
    click.option("--trials", type=click.IntRange(1), help="Plays of each task, for pass^k."),
    click.option(
        "--workers", type=click.IntRange(1), help="Tasks at a time; default 16 with a model of this process, else 4."
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed, the same plays."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="a.b=c",
        help="A setting of the suite, or agent_settings.X=Y, backend.X=Y. Repeatable.",
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="Where rows and report go; default evals/SUITE-AGENT-BACKEND-HASH.",
    ),
    click.option("--json", "as_json", is_flag=True, help="For machines."),
)


def agent_options(command: F) -> F:
    """Add the options, in their order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.command()
@agent_options
def agents(**options: Any) -> None:
    """Let an agent play any suites: rlhf eval agents agentbench_mini bfcl --data bfcl=FOLDER."""
    if not options["more"]:
        raise click.UsageError("name a suite, for example agentbench_mini")
    _run(options.pop("more"), options)


@click.command()
@agent_options
def agentbench_mini(**options: Any) -> None:
    """36 own tasks for agents: tool use, several steps, and what cannot be found.

    \b
    rlhf eval agentbench_mini --agent react --backend scripted
    rlhf eval agentbench_mini --agent react --agent zero_shot --model M
    """
    _run(("agentbench_mini", *options.pop("more")), options)


@click.command()
@agent_options
def bfcl(**options: Any) -> None:
    """Berkeley Function Calling Leaderboard, single turn: rlhf eval bfcl --data FOLDER."""
    _run(("bfcl", *options.pop("more")), options)


@click.command()
@agent_options
def tau_bench(**options: Any) -> None:
    """tau-bench, retail or airline.

    \b
    rlhf eval tau_bench --data FOLDER --model M
    rlhf eval tau_bench --data FOLDER --model M --set user.backend=openai --set user.model=U
    rlhf eval tau_bench --data FOLDER --replay FILE      # published trajectories
    """
    _run(("tau_bench", *options.pop("more")), options)


@click.command()
@agent_options
def chains(**options: Any) -> None:
    """Chains of documents, 2 to 8 hops: rlhf eval chains --agent multi_agent --agent scratchpad."""
    _run(("chains", *options.pop("more")), options)


@click.command()
@agent_options
def code_debug(**options: Any) -> None:
    """12 functions to repair, judged by asserts in a sandbox.

    \b
    rlhf eval code_debug --agent code_executor --agent zero_shot --model M
    """
    _run(("code_debug", *options.pop("more")), options)


@click.command()
@agent_options
def agentbench_generated(**options: Any) -> None:
    """Tasks from a seed, as many as wanted, in seven categories.

    \b
    rlhf eval agentbench_generated --set count=200 --category flaky --model M
    """
    _run(("agentbench_generated", *options.pop("more")), options)


@click.command()
@agent_options
def gaia_mini(**options: Any) -> None:
    """30 own tasks in the manner of GAIA, 3 levels: rlhf eval gaia_mini --levels 1,2."""
    _run(("gaia_mini", *options.pop("more")), options)


@click.command()
@agent_options
def gaia(**options: Any) -> None:
    """GAIA's 165 validation tasks, from the hub or a folder: rlhf eval gaia --data FOLDER --set mode=official."""
    _run(("gaia", *options.pop("more")), options)


@click.command()
@agent_options
def injection(**options: Any) -> None:
    """20 instructions inside tool results: rlhf eval injection --agent react --agent multi_agent --model M."""
    _run(("injection", *options.pop("more")), options)


def _run(suites: tuple[str, ...], options: dict[str, Any]) -> None:
    from rlhf_core.cli import emit_json
    from rlhf_plugin_agents.commands import evaluate_all
    from rlhf_plugin_agents.show import show

    as_json = options.pop("as_json")
    results = evaluate_all(suites, options, lambda text: click.echo(text, err=True))
    if as_json:
        emit_json(results)
    else:
        show(results)
