"""`rlhf eval SUITE --agent A --backend B` for suites that agents play."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rlhf_core.cli import emit_json

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
    click.option("--workers", type=click.IntRange(1), help="Tasks at a time; default 16 with backend native, else 4."),
    click.option(
        "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="The same seed, the same plays."
    ),
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


def _suite(name: str, help: str) -> click.Command:
    @click.command(name.replace("_", "-"), help=help)
    @agent_options
    def command(**options: Any) -> None:
        _run((name, *options.pop("more")), options)

    return command


agentbench_mini = _suite(
    "agentbench_mini",
    """36 own tasks for agents: tool use, several steps, and what cannot be found.

    \b
    rlhf eval agentbench_mini --agent react --backend scripted
    rlhf eval agentbench_mini --agent react --agent zero_shot --model M
    """,
)
bfcl = _suite("bfcl", "Berkeley Function Calling Leaderboard, single turn: rlhf eval bfcl --data FOLDER.")
tau_bench = _suite(
    "tau_bench",
    """tau-bench, retail or airline.

    \b
    rlhf eval tau_bench --data FOLDER --model M
    rlhf eval tau_bench --data FOLDER --model M --set user.backend=openai --set user.model=U
    rlhf eval tau_bench --data FOLDER --replay FILE      # published trajectories
    """,
)
chains = _suite("chains", "Chains of documents, 2 to 8 hops: rlhf eval chains --agent multi_agent --agent scratchpad.")
code_debug = _suite(
    "code_debug",
    """12 functions to repair, judged by asserts in a sandbox.

    \b
    rlhf eval code_debug --agent code_executor --agent zero_shot --model M
    """,
)
agentbench_generated = _suite(
    "agentbench_generated",
    """Tasks from a seed, as many as wanted, in seven categories.

    \b
    rlhf eval agentbench_generated --set count=200 --category flaky --model M
    """,
)
gaia_mini = _suite("gaia_mini", "30 own tasks in the manner of GAIA, 3 levels: rlhf eval gaia_mini --levels 1,2.")
gaia = _suite(
    "gaia", "GAIA's 165 validation tasks, from the hub or a folder: rlhf eval gaia --data FOLDER --set mode=official."
)
injection = _suite(
    "injection", "20 instructions inside tool results: rlhf eval injection --agent react --agent multi_agent --model M."
)


def _run(suites: tuple[str, ...], options: dict[str, Any]) -> None:
    from rlhf_plugin_agents.commands import evaluate_all
    from rlhf_plugin_agents.show import show

    as_json = options.pop("as_json")
    results = evaluate_all(suites, options, lambda text: click.echo(text, err=True))
    emit_json(results) if as_json else show(results)
