"""`rlhf trace show` prints an episode turn by turn; what the policy only read is greyed."""

from __future__ import annotations

import click
from click.testing import CliRunner

from rlhf_core.cli import print_turn
from rlhf_core.training.trace import turn_row
from rlhf_core.types.messages import Turn, TurnStatus


def test_turns_are_printed_and_results_are_greyed() -> None:
    function = {"name": "add", "arguments": {"a": 1}}
    called = {"role": "assistant", "content": "Now.", "tool_calls": [{"id": "c", "function": function}]}
    turns = (
        Turn((0, 9), "assistant", called),
        Turn((9, 30), "tool", {"role": "tool", "content": "3"}, 0.5, TurnStatus.TIMEOUT, 2.0),
    )

    @click.command()
    def show() -> None:
        for turn in turns:
            print_turn(turn_row(turn))

    out = CliRunner().invoke(show, color=True).output
    assert "assistant (9 tokens): Now.\n" in out
    assert '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>' in out
    assert "\x1b[2m        tool (21 tokens, timeout, score 0.5, 2 s): 3\x1b[0m" in out
