"""Episodes with calls: what the policy reads, what ends an episode, and whose fault a failure is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_core.plugins.registry import Registry
from rlhf_core.training.generation import check_episode
from rlhf_core.types.errors import ConfigError, PluginError
from rlhf_core.types.rollouts import FinishReason, Prompt, Score, ScoreStatus
from rlhf_plugin_episodes.journal import Journal
from tests.waiting import alive, wait_for

from .conftest import Stage, call


def gone(pid: int) -> bool:
    wait_for(lambda: not alive(pid), f"the end of process {pid}")
    return True


def results(rollout: Any) -> list[tuple[str, str]]:
    return [(turn.status.value, turn.text) for turn in rollout.turns if turn.role == "tool"]


def test_an_episode_keeps_the_sampled_tokens_and_masks_what_the_policy_reads(stage: Stage, tokenizer: Any) -> None:
    script = [f"First.{call('echo', 'a')}", f"{call('echo', 'b')}\n{call('echo', 'c')}", "The answer is 3."]
    (rollout,) = stage.play({"p": script})
    check_episode(rollout, 2000, "agent")
    assert [turn.role for turn in rollout.turns] == ["assistant", "tool", "assistant", "tool", "tool", "assistant"]
    assert results(rollout) == [("ok", "echo a"), ("ok", "echo b"), ("ok", "echo c")]
    assert rollout.score == Score(3.0)
    assert (rollout.text, rollout.info["ended"], rollout.info["calls"]) == ("The answer is 3.", "answer", 3)
    assert rollout.mask_T is not None
    written = np.asarray(rollout.completion_ids)[rollout.mask_T].tolist()
    assert written == [
        i for text in script for i in (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)
    ]
    assert stage.engine is not None
    read = stage.engine.requests[-1].prompt_ids  # token in, token out: what was read is what is trained on
    assert (*rollout.prompt_ids, *rollout.completion_ids)[: len(read)] == read
    assert tokenizer.decode(read).count("<tool_response>\necho") == 3
    assert len({request.seed for request in stage.engine.requests}) == 3


def test_a_tool_result_with_the_answer_earns_nothing(stage: Stage) -> None:
    (rollout,) = stage.play({"p": [call("echo", "42"), "I do not know."]})
    sample = rollout.sample(Prompt("p", ({"role": "user", "content": "?"},), answer="42"))
    assert "42" not in sample.completion
    assert any("42" in turn.text for turn in sample.trajectory)


def test_the_policy_reads_what_was_wrong_and_goes_on(stage: Stage) -> None:
    cases = [
        (call("echo", "x", name="fly"), "error", "there is no tool 'fly'"),
        ('<tool_call>\n{"name": "do", "arguments": {"what": \n</tool_call>', "error", "JSON"),
        ('<tool_call>\n{"name": "do", "arguments": {"what": 3}}\n</tool_call>', "error", "what"),
        ('<tool_call>\n{"name": "do", "arguments": {"what": "echo", "more": 1}}\n</tool_call>', "error", "more"),
        (call("refuse"), "error", "not today"),
        (call("huge"), "truncated", f"{'x' * 99}\n[cut: 99 of 5242880 characters]"),
        (call("binary"), "error", "25600 bytes that are not text"),
        ('<tool_call>\n{"name": "do", "argu…', "error", "cut at its limit"),
    ]
    script = {str(n): [turn, "Sorry."] for n, (turn, _, _) in enumerate(cases)}
    for rollout, (_, status, says) in zip(stage.play(script, max_result_characters=99), cases, strict=True):
        ((got, text),) = results(rollout)
        assert got == status
        assert says in text
        assert rollout.score == Score(0.0)
        assert rollout.text == "Sorry."


def test_a_broken_environment_is_a_missing_score_and_its_neighbours_play_on(stage: Stage) -> None:
    cases = {
        "raise_": (ScoreStatus.ERROR, "ValueError: no such thing"),
        "hang": (ScoreStatus.TIMEOUT, "did not answer step in 1 s"),
        "segfault": (ScoreStatus.ERROR, "was killed by SIGSEGV"),
        "exit": (ScoreStatus.ERROR, "ended with exit code 7"),
    }
    *broken, other = stage.play(
        {**{what: [call(what)] for what in cases}, "good": [call("echo", "a"), call("echo", "b"), "Done."]}
    )
    for rollout, (status, says) in zip(broken, cases.values(), strict=True):
        assert rollout.score is not None
        assert rollout.score.status is status
        assert says in rollout.score.detail
    assert other.score == Score(2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "status"),
    [
        ({"score_does": "hang"}, ScoreStatus.TIMEOUT),
        ({"score_does": "raise_"}, ScoreStatus.ERROR),
        ({"reset_does": "hang"}, ScoreStatus.TIMEOUT),
        ({"reset_does": "segfault"}, ScoreStatus.ERROR),
    ],
)
def test_a_set_up_or_a_score_that_fails_is_a_missing_score(
    stage: Stage, does: dict[str, str], status: ScoreStatus
) -> None:
    (rollout,) = stage.play({"p": [call("echo", "a"), "x"]}, {"name": "naughty", **does}, setup_timeout_s=0.5)
    assert rollout.score is not None
    assert rollout.score.status is status


def test_an_environment_that_takes_too_long_in_all_its_calls_is_a_missing_score(stage: Stage) -> None:
    slow, quick = stage.play({"p": [call("sleep", "0.3")] * 5, "q": [call("sleep", "0"), "x"]}, episode_timeout_s=0.7)
    assert slow.score is not None
    assert (slow.score.status, slow.info["calls"]) == (ScoreStatus.TIMEOUT, 3)
    assert slow.score.detail.endswith("took more than the 0.7 s of an episode (agent.episode_timeout_s)")
    assert quick.score == Score(0.0)


def test_a_wrong_result_names_what_was_expected(stage: Stage) -> None:
    with pytest.raises(PluginError, match="returned int 12 as a result, expected a ToolResult or a str"):
        stage.play({"p": [call("wrong"), "x"]})


def test_what_a_killed_call_started_is_gone(stage: Stage, tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    stage.play({"p": [call("orphan_and_hang", str(files[0])), "x"], "q": [call("orphan", str(files[1])), "x"]})
    assert all(gone(int(file.read_text())) for file in files)


def test_no_process_of_an_episode_is_left(stage: Stage) -> None:
    rollouts = stage.play({str(n): [call("pid"), "x"] for n in range(12)})
    pids = {int(text) for rollout in rollouts for _, text in results(rollout)}
    assert len(pids) == 12  # each in a process of its own
    assert all(map(gone, pids))
    server = stage.agents[-1].answers.host.process.pid
    stage.agents[-1].close()
    assert gone(server)


@pytest.mark.slow
def test_a_library_that_starts_threads_is_not_forked(stage: Stage) -> None:
    rollouts = stage.play({str(n): [call("echo", "a"), "x"] for n in range(2)}, {"name": "naughty", "thread": True})
    assert [r.score.value for r in rollouts if r.score is not None] == [1.0, 1.0]


def test_episodes_are_sampled_together_and_end_each_for_itself(stage: Stage) -> None:
    script = {
        "answers": ["Yes."],
        "loops": [call("echo", str(n)) for n in range(3)],
        "is over": [call("finish"), "never"],
        "is paid": [call("reward", "0.5"), "Thanks."],
    }
    rollouts = stage.play(script, max_turns=3)
    assert [r.info["ended"] for r in rollouts] == ["answer", "max_turns", "done", "answer"]
    assert stage.engine is not None
    assert stage.engine.batches == [4, 2, 1]
    assert [turn.score for turn in rollouts[3].turns if turn.role == "tool"] == [0.5]


def test_a_full_context_ends_the_episode(stage: Stage) -> None:
    text = call("echo", "a")
    (rollout,) = stage.play({"p": [text] * 20}, max_tokens=150, max_turns=20)
    assert rollout.info["ended"] in ("context_full", "length")
    assert rollout.finish_reason is FinishReason.LENGTH
    assert len(rollout.completion_ids) <= 150
    check_episode(rollout, 150, "agent")


def test_what_the_policy_has_no_room_to_read_is_kept_with_its_score(stage: Stage, tokenizer: Any) -> None:
    turns = [f"{call('reward', '0.5')}\n{call(*other)}" for other in (("echo", "a"), ("finish",))]
    room = 4 + max(len(tokenizer.encode(turn, add_special_tokens=False)) for turn in turns)
    full, over = stage.play({str(n): [turn] for n, turn in enumerate(turns)}, max_tokens=room)
    assert (full.info["ended"], over.info["ended"]) == ("context_full", "done")
    assert (full.finish_reason, over.finish_reason) == (FinishReason.LENGTH, FinishReason.EOS)
    for rollout in (full, over):
        end = len(rollout.completion_ids)
        assert [(turn.span, turn.score) for turn in rollout.turns[1:]] == [((end, end), 0.5), ((end, end), None)]
        check_episode(rollout, room, "agent")
    (talk,) = stage.play({"p": ["Hello."]}, "talker", max_turns=1)
    assert [turn.role for turn in talk.turns] == ["assistant", "user"]
    assert talk.info["ended"] == "max_turns"


def test_too_many_calls_in_a_turn_are_not_made(stage: Stage) -> None:
    (rollout,) = stage.play({"p": ["\n".join(call("echo", str(n)) for n in range(4)), "x"]}, max_calls=2)
    assert [status for status, _ in results(rollout)] == ["ok", "ok", "error", "error"]
    assert rollout.score == Score(2.0)


def test_a_tool_that_hangs_or_crashes_is_told_to_the_policy_and_the_others_answer(stage: Stage) -> None:
    calculate = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "%s"}}\n</tool_call>'
    turn = "\n".join(calculate % text for text in ("2 * 21", "1 / 0", "9 ** 9 ** 9", "__import__('os')"))
    (rollout,) = stage.play({"p": [turn, "42"]}, "tools")
    assert results(rollout)[0] == ("ok", "42")
    assert [status for status, _ in results(rollout)[1:]] == ["error"] * 3
    assert rollout.score is None  # the run's reward judges the answer


ENDS = """
import asyncio, sys
class Own(BaseException): pass
class Mute(Exception):
    def __str__(self): raise ValueError("no text")
WAYS = {"exit": SystemExit("bye"), "interrupt": KeyboardInterrupt(), "own": Own("mine"), "mute": Mute(),
        "cancelled": asyncio.CancelledError(), "value": ValueError("no such thing")}
def end(how: str) -> str:
    if how == "sys.exit": sys.exit(3)
    if how in WAYS: raise WAYS[how]
    return how
"""


def test_whatever_a_tool_raises_is_read_by_the_policy_and_the_others_answer(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    ways = {
        "exit": "SystemExit: bye",
        "sys.exit": "SystemExit: 3",
        "interrupt": "KeyboardInterrupt",
        "own": "Own: mine",
        "mute": "Mute",
        "cancelled": "CancelledError",
        "value": "ValueError: no such thing",
    }
    calls = [f'<tool_call>\n{{"name": "end", "arguments": {{"how": "{how}"}}}}\n</tool_call>' for how in (*ways, "ok")]
    environment = {"name": "tools", "tools": [], "files": [str(tmp_path / "ends.py")]}
    (rollout,) = stage.play({"p": ["\n".join(calls), "done"]}, environment)
    assert results(rollout) == [*(("error", f"Error: {text}") for text in ways.values()), ("ok", "ok")]
    assert (rollout.info["ended"], rollout.score) == ("answer", None)


def test_two_tools_of_one_name_are_refused_before_any_work(naughty: Path) -> None:
    chosen = Registry(disabled=()).load("environment", "twice")()
    with pytest.raises(ConfigError, match="offers two tools called 'do'"):
        chosen.preflight(None)  # type: ignore[arg-type]


def test_an_environment_that_could_not_be_resumed_is_refused(stage: Stage) -> None:
    with pytest.raises(PluginError, match="could not be resumed"):
        stage.agent("forgetful")


def test_a_resumed_episode_repeats_no_side_effect(naughty: Path, tokenizer: Any, tmp_path: Path) -> None:
    file = tmp_path / "effects.txt"
    environment = {"name": "effects", "file": str(file)}
    script = {"p": [call("one"), f"{call('two')}\n{call('three')}", "Done."], "q": [call("four"), "Done.", "Bye."]}
    stage = Stage(tokenizer, tmp_path / "run")
    try:
        whole = stage.play(script, environment)
        assert len(file.read_text().splitlines()) == 5  # q is answered once by respond()
        journal = tmp_path / "run" / "episodes" / "rank-0.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        for kept, made in ((len(lines), 0), (4, 3)):  # all answers; the first one of each episode
            journal.write_bytes(b"".join(lines[:kept]) + b'{"key": "torn')
            file.write_text("")
            again = stage.play(script, environment)
            assert len(file.read_text().splitlines()) == made
            assert [(r.completion_ids, r.score) for r in again] == [(r.completion_ids, r.score) for r in whole]
    finally:
        for agent in stage.agents:
            agent.close()


@pytest.mark.parametrize(("what", "same"), [("echo", True), ("pid", False)])
def test_a_pure_environment_is_brought_back_by_all_that_it_was_told(
    what: str, same: bool, naughty: Path, tokenizer: Any, tmp_path: Path
) -> None:
    stage = Stage(tokenizer, tmp_path / "run")
    script = {"p": [call(what, "a"), "Hello.", call("echo", "b"), "Bye."]}
    try:
        (whole,) = stage.play(script, "talker")
        journal = tmp_path / "run" / "episodes" / "rank-0.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:2]))  # the first call and the first answer
        (again,) = stage.play(script, "talker")
        assert whole.score == Score(3.0 if same else 2.0)
        if same:
            assert (again.completion_ids, again.score) == (whole.completion_ids, whole.score)
        else:
            assert again.score is not None
            assert (again.score.status, again.score.value) == (ScoreStatus.ERROR, None)
            assert "not pure" in again.score.detail
    finally:
        for agent in stage.agents:
            agent.close()


def test_a_call_that_was_under_way_is_not_made_again(naughty: Path, tokenizer: Any, tmp_path: Path) -> None:
    file = tmp_path / "effects.txt"
    stage = Stage(tokenizer, tmp_path / "run")
    try:
        stage.play({"p": [call("one"), "Done.", "x"]}, {"name": "effects", "file": str(file)})
        journal = tmp_path / "run" / "episodes" / "rank-0.jsonl"
        journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])  # begun, and killed
        file.write_text("")
        (rollout,) = stage.play({"p": [call("one"), "Done.", "x", "y"]}, {"name": "effects", "file": str(file)})
        assert "interrupted" in results(rollout)[0][1]
        assert " one" not in file.read_text()
    finally:
        for agent in stage.agents:
            agent.close()


def test_the_journal_outlives_a_kill_within_a_checkpoint_and_another_one_after_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.answer("before", {"value": 1})
    journal.checkpoint()  # killed here, before the checkpoint is whole, and within a line
    journal.answer("ahead", {"value": 2})
    journal.close()
    with (tmp_path / "episodes" / "rank-0.jsonl").open("ab") as file:
        file.write(b'{"key": "torn')
    resumed = Journal(tmp_path)
    assert [resumed.take_answer(key) is not None for key in ("before", "ahead")] == [True] * 2
    resumed.answer("new", {"value": 3})
    resumed.checkpoint()  # killed here as well
    resumed.close()
    later = Journal(tmp_path)
    assert [later.take_answer(key) is not None for key in ("before", "ahead", "new")] == [True] * 3


def test_the_journal_keeps_two_checkpoints_worth(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for part in range(3):
        journal.answer(f"k{part}", {"value": part})
        journal.checkpoint()
    journal.answer("k3", {"value": 3})
    journal.close()
    later = Journal(tmp_path)
    assert [later.take_answer(f"k{n}") is None for n in range(4)] == [True, True, False, False]
    assert later.take_answer("k3") is None  # an answer is taken once
