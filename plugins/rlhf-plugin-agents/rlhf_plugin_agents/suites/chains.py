"""Chains of any length: each document names the next one. Made from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rlhf_plugin_agents.scorers import exact_match, sequence_match
from rlhf_plugin_agents.suites.chain_reader import ChainReader
from rlhf_plugin_agents.suites.scripts import Script
from rlhf_plugin_agents.suites.task import AgentTask, Room, Verdict
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.tools.library import Documents
from rlhf_plugin_agents.trajectory import AgentTrajectory
from rlhf_plugin_episodes.tool_spec import tool_spec

STARTS = ("Bra", "Cor", "Del", "Fen", "Gal", "Hol", "Jor", "Kel", "Lum", "Mar", "Nor", "Pel", "Ras", "Sol", "Tor")
ENDS = ("dan", "fell", "gate", "ham", "ika", "lund", "mere", "nor", "ost", "quay", "rand", "stad", "thor", "una", "vik")
TRADES = ["boats", "clocks", "cheese", "glass", "rope", "salt", "slate", "tiles", "wool", "violins"]
SPEC = tool_spec("documents", "Returns the document about a town.", title={"type": "string", "description": "The town"})


def chain_tasks(hops: Sequence[int], count: int, seed: int, filler: int = 0) -> list[AgentTask]:
    """Chains from a seed; the same one gives the same.

    Args:
        hops: lengths.
        count: chains of each length.
        seed: decides names and texts.
        filler: sentences that are added to each document, of 8 words each.
    """
    return [_task(n, i, random.Random(f"{seed}/{n}/{i}"), filler) for n in hops for i in range(count)]


def _task(hops: int, number: int, rng: random.Random, filler: int) -> AgentTask:
    towns = rng.sample([a + b for a in STARTS for b in ENDS], hops + 1 + 8)
    chain, others = towns[: hops + 1], towns[hops + 1 :]
    corpus = {town: _text(town, after, rng) for town, after in zip(chain, [*chain[1:], others[0]])}
    corpus |= {town: _text(town, rng.choice(others), rng) for town in others}
    corpus = {town: text + " Many visitors like its old streets and squares." * filler for town, text in corpus.items()}
    documents, answer = Documents(corpus), chain[-1]
    calls = [{"name": "documents", "arguments": {"title": town}} for town in chain[:-1]]
    asked = (
        f"Every town has a document that names its twin town. Begin with {chain[0]} and go on {hops} times from a town "
        "to its twin town. At which town do you arrive?"
    )

    def judge(trajectory: AgentTrajectory, room: Room) -> Verdict:
        value = exact_match(trajectory.answer, {"answer": answer})
        process = sequence_match([str(c.arguments.get("title")) for c in trajectory.calls], chain[:-1])
        return Verdict(value, value == 1.0, process, f"wanted: {answer}")

    return AgentTask(
        f"hops_{hops}/{number}",
        f"hops_{hops}",
        ({"role": "user", "content": asked},),
        lambda seed: Room(ToolBox([SPEC], lambda name, arguments: documents.call(**arguments))),
        judge,
        {"oracle": Script(calls, answer), "wrong": Script(calls, chain[-2]), "reader": ChainReader()},
        level=hops,
        judged_by=corpus,
    )


def _text(town: str, twin: str, rng: random.Random) -> str:
    return (
        f"{town} has {rng.randrange(2, 90)}00 inhabitants and makes {rng.choice(TRADES)}. Its twin town is {twin}. "
        f"A fair is held there every {rng.choice(('spring', 'summer', 'autumn', 'winter'))}."
    )
