"""What an episode must be: masks, turns, budgets and logprobs agree, and no reward sees what a tool said."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.training.generation import RolloutGenerator, rollout_metrics
from rlhf_core.training.rewards import RewardManager
from rlhf_core.training.rollout_batch import RolloutBatch
from rlhf_core.training.trace import prompt_rows
from rlhf_core.types.errors import PluginError
from rlhf_core.types.messages import Segment, Turn, TurnStatus, VersionSpan
from rlhf_core.types.rollouts import (
    FinishReason,
    MalformedRollout,
    Prompt,
    PromptGroup,
    Rollout,
    SamplingParams,
    Score,
    ScoreStatus,
)
from rlhf_plugin_episodes.episode import Episode
from rlhf_plugin_schedule.buffered_source import batch_state, read_batch
from rlhf_plugin_verifiers.numeric import NumericVerifier
from rlhf_plugin_verifiers.reward_config import NumericVerifierConfig
from rlhf_plugin_verifiers.workers import sample_from_json, sample_to_json

PROMPT = Prompt("p", ({"role": "user", "content": "2 * 21?"},), answer="42")
MASK = np.array([True, True, False, True])
TURNS = (
    Turn((0, 2), "assistant", {"role": "assistant", "content": "compute", "tool_calls": [{"id": "a"}]}),
    Turn((2, 3), "tool", {"role": "tool", "content": "42"}, score=0.5, status=TurnStatus.TRUNCATED, seconds=0.25),
    Turn((3, 4), "assistant", {"role": "assistant", "content": "no idea"}),
)


def episode(**changes: Any) -> Rollout:
    fields: dict[str, Any] = {
        "completion_ids": (5, 6, 7, 8),
        "logprobs_T": np.array([-1, -1, 0, -1], np.float32),
        "mask_T": MASK,
        "turns": TURNS,
        "text": "no idea",
    }
    fields = {"group_index": 0, **fields, **changes}
    return Rollout("p", prompt_ids=(1,), policy_version=0, finish_reason=FinishReason.EOS, seed=1, **fields)


class Agent:
    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout

    def play(self, *args: Any) -> list[Rollout]:
        return [self.rollout]


def played(rollout: Rollout, max_tokens: int = 8) -> Rollout:
    generator = RolloutGenerator(Agent(rollout), None, 0)  # pyright: ignore[reportArgumentType]
    groups = [PromptGroup(PROMPT, (1,), 1)]
    return generator.sample(groups, SamplingParams(max_tokens=max_tokens), 0, tag=0)[0]


def test_a_whole_episode_passes() -> None:
    assert played(episode()).turns == TURNS


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"logprobs_T": np.full(4, -1, np.float32)}, "logprob -1 at token 2 of p#0, which is masked"),
        ({"mask_T": np.zeros(4, bool), "logprobs_T": np.zeros(4, np.float32)}, "without a token of the policy"),
        ({"mask_T": np.array([1, 1, 0, 1])}, "a mask of int64"),
        ({"turns": ()}, "masked tokens in p#0, but no turns"),
        ({"mask_T": None, "logprobs_T": np.full(4, -1, np.float32)}, "role 'tool' in p#0, tokens 2 to 3"),
        (
            {"turns": (*TURNS[:2], Turn((3, 4), "assistant", {"content": float("nan")}))},
            "a message in p#0 that is not JSON",
        ),
    ],
)
def test_an_episode_whose_parts_disagree_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PluginError, match=says.replace("(", r"\(")):
        played(episode(**changes))


def test_an_episode_above_its_budget_is_refused() -> None:
    with pytest.raises(PluginError, match="4 tokens for p#0"):
        played(episode(), max_tokens=3)


@pytest.mark.parametrize(
    "changes",
    [
        {"mask_T": MASK[:3]},
        {"turns": TURNS[:2]},
        {"turns": (Turn((0, 3), "assistant", {}), Turn((2, 4), "tool", {}))},
    ],
)
def test_short_masks_and_spans_that_leave_tokens_out_are_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedRollout):
        episode(**changes)


def test_a_tool_result_that_holds_the_answer_earns_nothing() -> None:
    for rollout in (episode(), episode(text="compute 42 no idea")):  # an agent may have put everything into its text
        sample = rollout.sample(PROMPT)
        assert sample.completion == "no idea"
        assert sample.trajectory == TURNS
        assert NumericVerifier(NumericVerifierConfig()).verify(sample).value == 0.0


class Ones:
    def score(self, samples: Any) -> list[Score]:
        return [Score(1.0)] * len(samples)


def test_an_episode_that_its_environment_broke_has_no_score_and_the_others_have_one() -> None:
    broken = episode(score=Score.failed(ScoreStatus.TIMEOUT, "reset took 5 s"))
    scores = RewardManager(Ones(), {}, 0.5).score([PROMPT] * 2, [broken, episode(score=Score(0.1))])
    assert [s.status for s in scores] == [ScoreStatus.TIMEOUT, ScoreStatus.OK]


def test_workers_checkpoints_and_traces_carry_the_trajectory() -> None:
    rollout = episode(score=Score(0.25, {"calls": 1.0}), segments=(Segment((0, 4), "assistant", (1,)),))
    sample = rollout.sample(PROMPT)
    assert sample_from_json(sample_to_json(sample)) == sample
    group = PromptGroup(PROMPT, (1,), 1)
    batch = RolloutBatch([group], [group], [rollout], [Score(1.0)])
    read = read_batch(batch_state(batch), {(PROMPT.source, PROMPT.id): PROMPT}).rollouts[0]
    assert (read.turns, read.score, read.segments) == (rollout.turns, rollout.score, rollout.segments)
    row = prompt_rows([group], [rollout], [Score(1.0)], [0.0], 1)[0]["completions"][0]
    assert [turn["role"] for turn in row["turns"]] == ["assistant", "tool", "assistant"]
    assert row["turns"][1] == {
        "span": [2, 3],
        "role": "tool",
        "message": {"role": "tool", "content": "42"},
        "status": "truncated",
        "score": 0.5,
        "seconds": 0.25,
    }


def test_metrics_count_what_the_policy_wrote_apart_from_what_it_read() -> None:
    metrics = rollout_metrics([episode(), episode(group_index=1)])
    assert metrics["tokens_generated"] == 6
    assert metrics["completion_length/mean"] == 3
    assert metrics["environment_tokens"] == 2
    assert metrics["turns/mean"] == 2
    assert metrics["turns/truncated"] == 2


def test_an_episode_says_which_weights_sampled_its_tokens() -> None:
    """What it read between two turns goes with the turn before."""
    spans = ((VersionSpan((0, 1), 4), VersionSpan((1, 3), 5)), (VersionSpan((0, 2), 5),), (VersionSpan((0, 2), 7),))
    whole = episode_of(spans)
    assert whole.versions == (VersionSpan((0, 1), 4), VersionSpan((1, 9), 5), VersionSpan((9, 13), 7))
    assert whole.policy_version == 4


def test_a_turn_may_come_from_a_server_with_older_weights_than_the_one_before() -> None:
    whole = episode_of(((VersionSpan((0, 2), 5),), (VersionSpan((0, 3), 4),)))
    assert whole.versions == (VersionSpan((0, 4), 5), VersionSpan((4, 9), 4))
    assert whole.policy_version == 4


def episode_of(turns: Sequence[tuple[VersionSpan, ...]]) -> Rollout:
    played = Episode(PromptGroup(PROMPT, (1,), 1), 0, 0, 40, 40)
    formatter = Formatter(load_tokenizer(ModelConfig(path="pocket")), "auto")
    for turn in turns:
        count = turn[-1].span[1]
        logprobs_T = np.full(count, -1, np.float32)
        ids = tuple(range(count))
        rollout = Rollout("p", 0, (1,), ids, logprobs_T, turn[0].version, FinishReason.EOS, "", 0, versions=turn)
        played.add_policy_turn(rollout, formatter, ())
        played.observe([8, 9], [Turn((0, 2), "tool", {"role": "tool", "content": "42"})], new_context=False)
    return played.rollout(3)
