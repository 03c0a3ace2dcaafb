"""The 36 tasks check themselves: the oracle passes, wrong answers fail, and the tools really hold the evidence."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.data import ToolCall
from rlhf_plugin_agents.agents.config import AGENTS
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.harness import play_one
from rlhf_plugin_agents.scorers import GRACEFUL, RIGHT, SCORERS, numeric_match, sequence_match, token_f1
from rlhf_plugin_agents.suites.config import AgentBenchMini
from rlhf_plugin_agents.suites.own import mini_rows

ROWS = {row["id"]: row for row in mini_rows()}


def test_there_are_twelve_of_each_category_and_several_steps_where_promised() -> None:
    categories = [r["category"] for r in ROWS.values()]
    assert {c: categories.count(c) for c in categories} == {"tool_use": 12, "multi_step": 12, "failure_recovery": 12}
    assert all(2 <= len(r["calls"]) <= 4 for r in ROWS.values() if r["category"] == "multi_step")
    assert all(r["scorer"] == "binary_graceful" for r in ROWS.values() if r["category"] == "failure_recovery")
    assert {r["scorer"] for r in ROWS.values()} == set(SCORERS) - {"clarifies", "gaia_match"}


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_the_reference_is_right_and_wrong_answers_are_wrong(row: Any) -> None:
    score, bar = SCORERS[row["scorer"]], RIGHT.get(row["scorer"], 1.0)
    assert score(row["answer"], row) >= bar
    for answer in (*row["wrong"], "", "I am not sure.", "42.5", row["prompt"]):
        assert score(answer, row) < bar, answer


@pytest.mark.parametrize("reference", ["A", "the", "+", "?"])
def test_a_reference_of_an_article_or_a_sign_is_no_empty_answer(reference: str) -> None:
    right = SCORERS["exact_match"]
    assert right(f" {reference} ", {"answer": reference}) == 1
    assert not any(right(answer, {"answer": reference}) for answer in ("", " ", "!", "an"))


def test_the_calls_return_what_the_answer_needs(ctx: Any) -> None:
    """Through the real tools: every piece of evidence stands in some result; of what is not there, no trap does."""
    for task in AgentBenchMini().tasks(ctx):
        row, box = ROWS[task.id], task.open(0).box
        results = "\n".join(box.call(ToolCall(c["name"], c["arguments"])).result for c in row["calls"])
        for piece in row["evidence"]:
            assert piece in results, (task.id, piece, results)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("takes_tools", [True, False])
def test_the_oracle_gets_everything_and_who_is_always_wrong_nothing(agent: str, takes_tools: bool, ctx: Any) -> None:
    suite = AgentBenchMini(max_per_category=None if takes_tools else 4)
    tasks = suite.tasks(ctx)
    for script, wanted in (("oracle", True), ("wrong", False)):
        backend = ScriptedConfig(script=script, takes_tools=takes_tools).make(tasks, ctx)
        rows = [play_one(suite.agent_config(agent), backend, t, 0, 0) for t in tasks]
        assert {r["right"] for r in rows} == {wanted}, [(r["task"], r["answer"]) for r in rows if r["right"] != wanted]
        if wanted and agent != "zero_shot":
            assert {r["process"] for r in rows} == {1.0}
        if agent == "zero_shot":
            assert {r["calls"] for r in rows} == {0}


@pytest.mark.parametrize(
    "text",
    [
        "I could not find any information about Velsund.",
        "There is no record of a Brandvik Tower.",
        "No such document exists.",
        "The novel cannot be verified; it may be fictional.",
        "I wasn't able to locate it: the search returned no results.",
        "It does not appear to exist.",
        "This is unknown.",
    ],
)
def test_many_ways_of_saying_that_nothing_was_found_are_understood(text: str) -> None:
    assert GRACEFUL.search(text)


@pytest.mark.parametrize("text", ["It is 330 metres tall.", "Nobody but Ada Lindqvist.", "It is known as the Tower."])
def test_claims_are_not_taken_for_it(text: str) -> None:
    assert not GRACEFUL.search(text)


def test_a_graceful_answer_that_states_a_trap_is_wrong() -> None:
    row = ROWS["failure_recovery/9"]
    assert SCORERS["binary_graceful"]("No information on the Aldrun was found.", row) == 1
    assert SCORERS["binary_graceful"]("No information was found, but it is 214 km long.", row) == 0
    assert SCORERS["binary_graceful"]("No information was found for 2140.", row) == 1
    large = {"traps": ["48200"]}
    assert SCORERS["binary_graceful"]("No information was found; Orlinghaven has 48,200.", large) == 0
    assert SCORERS["binary_graceful"]("No information was found; Orlinghaven has 48,201.", large) == 1


def test_scorers_by_hand() -> None:
    assert numeric_match("It has 48,200 inhabitants.", {"answer": "48200"}) == 1
    assert numeric_match("about 2.245", {"answer": "2.24"}) == 1
    assert numeric_match("1890", {"answer": "1889"}) == 0
    assert token_f1("the Brenn town", {"answer": "Brenn"}) == pytest.approx(2 / 3)
    assert sequence_match(["search", "calculator"], ["search", "calculator"]) == 1
    assert sequence_match(["calculator", "search"], ["search", "calculator"]) == 0.5
    assert sequence_match([], ["search"]) == 0
    assert sequence_match(["search"], []) == 0
