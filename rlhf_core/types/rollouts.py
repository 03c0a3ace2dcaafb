"""What passes between prompts, generation, rewards and advantages: plain Python and numpy, never torch; read-only.

Suffixes: ``_T`` completion tokens of one rollout, ``_G`` completions of one prompt.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlhf_core.types.frozen import frozen
from rlhf_core.types.messages import Message as Message
from rlhf_core.types.messages import (
    Segment,
    Turn,
    VersionSpan,
    conversation,
    fault_in,
    fault_in_versions,
    final_text,
    last_turn,
    message_text,
)
from rlhf_core.types.messages import Tool as Tool
from rlhf_core.types.messages import ToolCall as ToolCall

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def _freeze(value: object, *fields: str) -> None:
    """Give a new value copies of what could be changed: plugins see it, and the maker may keep what it passed."""
    for name in fields:
        object.__setattr__(value, name, frozen(getattr(value, name)))


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound or a video that belongs to a text. Only its place and digest travel, never its content.

    Example:
        Media("image", path="charts/3.png", mime="image/png")
    """

    kind: Literal["image", "audio", "video"]
    path: str = ""
    """Where the file is, relative to the dataset or absolute."""
    sha256: str = ""
    """Digest of the content, in hex; empty where it was not computed."""
    mime: str = ""
    sample_rate: int = 0
    """Of a sound, in Hz; 0 where it is not known."""
    seconds: float = 0.0
    """How long a sound or a video lasts; 0 where it is not known."""

    def __post_init__(self) -> None:
        if not self.path and not self.sha256:
            raise ValueError(f"{self.kind} media needs a path or a sha256")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a prompt dataset, before tokenization.

    Example:
        Prompt(id="gsm8k/train/17", messages=({"role": "user", "content": "2 + 2?"},), answer="4", source="gsm8k")
    """

    id: str
    messages: tuple[Message, ...]
    """Conversation up to the turn the policy must write. The last role is ``user`` (or ``tool``)."""
    answer: str | None = None
    """Reference answer for verifiers; None where there is none."""
    source: str = ""
    """Name of the dataset source; rewards and verifiers may be chosen by it."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the row; JSON values only. Where a template changed the last turn, ``prompt`` is the row's."""
    media: tuple[Media, ...] = ()
    """Images, sounds or videos that the messages refer to, in the order of their mention."""
    tools: tuple[Tool, ...] = ()
    """What the policy may call, with a JSON schema each; their names differ."""

    def __post_init__(self) -> None:
        _freeze(self, "messages", "meta", "tools")

    def __setstate__(self, state: Sequence[object]) -> None:
        # Called for each row that is read; that of dataclasses looks for the fields every time.
        for name, value in zip(self.__dataclass_fields__, state):
            object.__setattr__(self, name, value)

    @property
    def text(self) -> str:
        """Content of the last message. Example: ``"2 + 2?"``"""
        return message_text(self.messages[-1])


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """A tokenized prompt and how many completions to sample for it."""

    prompt: Prompt
    token_ids: tuple[int, ...]
    """Exactly what the policy is fed, chat template included."""
    group_size: int


class FinishReason(enum.StrEnum):
    """Why a completion ended."""

    EOS = "eos"
    """A token that ends completions was sampled."""
    STOP = "stop"
    """A stop string was produced."""
    LENGTH = "length"
    """``max_tokens`` was reached: the completion is truncated."""
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How completions are drawn. Probabilities are those of the *processed* distribution.

    Example:
        SamplingParams(max_tokens=64, temperature=1.0, stop=("</answer>",))
    """

    max_tokens: int = 64
    """Most tokens of a completion; of an episode, results of tools included."""
    min_tokens: int = 1
    """No token that ends a completion is drawn before so many."""
    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    """The likeliest tokens that have this probability together; 1 means off."""
    top_k: int = 0
    """0 means off."""
    min_p: float = 0.0
    """Least probability, as a share of the likeliest token's; 0 means off."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion; they are kept in its text and tokens."""
    support: bool = False
    """Whether ``Rollout.support`` is wanted: a trainer's, where top_p, top_k or min_p truncate."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One completion to sample. ``seed`` alone decides its randomness, whatever its neighbours."""

    prompt_id: str
    """``Prompt.id``."""
    prompt_ids: tuple[int, ...]
    """Token ids that the completion goes on from."""
    group_index: int
    """Number of the completion within its prompt's group, from 0."""
    seed: int
    """From the run's seed, step, prompt and number; no two requests of a batch have the same."""
    max_tokens: int | None = None
    """Fewer tokens than ``SamplingParams.max_tokens`` for this one; None leaves it at that."""


class MalformedRollout(ValueError):
    """A rollout without one log-probability per token, or whose segments do not cover its tokens."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled completion: token in, token out.

    Example:
        Rollout(prompt_id="a/1", group_index=0, prompt_ids=(1, 7), completion_ids=(5, 2),
                logprobs_T=np.array([-0.1, -0.7], np.float32), policy_version=3,
                finish_reason=FinishReason.EOS, text="4", seed=11)
    """

    prompt_id: str
    group_index: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    """Sampled tokens, the EOS included when it was sampled. Trained on exactly as they are."""
    logprobs_T: npt.NDArray[np.float32]
    """Natural-log probability of each sampled token under the behaviour policy, shape ``[T]``."""
    policy_version: int
    """Number of optimizer updates the behaviour policy had seen; where it had several versions, the oldest's."""
    finish_reason: FinishReason
    text: str
    """What the policy wrote, of an episode its last turn, decoded without special tokens; never re-encoded."""
    seed: int
    """Its request's."""
    mask_T: npt.NDArray[np.bool_] | None = None
    """True where the policy chose the token (False for tool output in multi-turn); None means all True."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the episode (an environment's reward, calls made, a final state); JSON values only."""
    segments: tuple[Segment, ...] = ()
    """Stretches, end to end over the whole completion. One with ``prompt_ids`` was sampled in a context of its own: an
    agent that rewrites its context still plays one episode, whose tokens lie one after the other here."""
    turns: tuple[Turn, ...] = ()
    """What was said and by whom, end to end over the whole completion; empty where the policy wrote all of it."""
    score: Score | None = None
    """The environment's own; a missing one (its status says why) is missing whatever the reward. None: it has none."""
    media: tuple[Media, ...] = ()
    """What the tokens stand for besides text: the sound of a speech policy. Empty for text."""
    versions: tuple[VersionSpan, ...] = ()
    """Which version sampled which tokens, ``policy_version`` the oldest, end to end; empty: that one sampled all."""
    support: npt.NDArray[np.int32] | None = None
    """What truncated sampling left to choose from: ``[T]`` numbers of ids, then these, token after token. None: all."""

    def __post_init__(self) -> None:
        import numpy as np

        tokens, shape = len(self.completion_ids), np.shape(self.logprobs_T)
        fault = f"{tokens} tokens but logprobs of shape {shape}" if shape != (tokens,) else ""
        fault = fault or fault_in(tokens, self.mask_T, self.segments, self.turns)
        if self.support is not None and len(self.support) != tokens + self.support[:tokens].sum():
            fault = fault or f"{tokens} tokens but a support of {len(self.support)} numbers"
        if fault := fault or fault_in_versions(tokens, self.policy_version, self.versions, rising=not self.turns):
            raise MalformedRollout(f"rollout {self.prompt_id}#{self.group_index}: {fault}")
        _freeze(self, "prompt_ids", "completion_ids", "logprobs_T", "mask_T", "info", "support")

    def sample(self, prompt: Prompt) -> Sample:
        """This completion as a reward sees it: nothing in its text but what the policy wrote."""
        text = final_text(self.turns) if self.turns else self.text
        return Sample(prompt, text, self.finish_reason, self.media, trajectory=self.turns, environment=self.score)


class ScoreStatus(enum.StrEnum):
    """Whether a score exists. Anything but ``OK`` is missing, which is not 0.0."""

    OK = "ok"
    """``Score.value`` is a finite number."""
    ERROR = "error"
    """The component raised, or its process died."""
    TIMEOUT = "timeout"
    """It did not answer in time and was killed."""
    MISSING = "missing"
    """There is nothing to score by, such as an answer or a judge."""
    GATED = "gated"
    """Dropped on purpose, e.g. by an ensemble's disagreement gate."""


LARGEST_SCORE = 1e15


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward or verifier returns for one completion.

    Example:
        Score(value=0.8, parts={"member_0": 1.1, "member_1": 0.5, "std": 0.3})
    """

    value: float | None
    """Higher is better. None where ``status`` is not ``ok``: a missing score is never 0. Its completion is counted,
    left out of the statistics of its group and not trained on; too many end the run (``max_missing_fraction``)."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the value is made of, for the trace and the metrics."""
    status: ScoreStatus = ScoreStatus.OK
    """Whether there is a value."""
    detail: str = ""
    """Why there is no value, for people."""

    def __post_init__(self) -> None:
        if self.status is ScoreStatus.OK and (self.value is None or not abs(self.value) <= LARGEST_SCORE):
            why = f"a finite value within +-{LARGEST_SCORE:g}"  # its square, summed over a batch, is one in float32
            raise ValueError(f"a score with status 'ok' needs {why}, got {self.value!r:.80}")
        _freeze(self, "parts")

    @property
    def ok(self) -> bool:
        """True when ``value`` may be used."""
        return self.status is ScoreStatus.OK

    @classmethod
    def failed(cls, status: ScoreStatus, detail: str) -> Score:
        """A missing score. Example: ``Score.failed(ScoreStatus.TIMEOUT, "no verdict in 5 s")``"""
        return cls(value=None, status=status, detail=detail)


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion as a reward or verifier sees it."""

    prompt: Prompt
    completion: str
    """What the policy wrote; of an episode of several turns its last. Never what a tool or an environment said."""
    finish_reason: FinishReason = FinishReason.EOS
    media: tuple[Media, ...] = ()
    """What the completion itself holds besides text; the prompt's is in ``prompt.media``."""
    trajectory: tuple[Turn, ...] = ()
    """Every turn of the episode, tools' results among them; empty for a single turn."""
    environment: Score | None = None
    """The environment's own score of the episode; None where it has none."""

    @property
    def before(self) -> tuple[Message, ...]:
        """What was said before the completion: the prompt and, in an episode, every turn before the policy's last."""
        return self.before_turn(last_turn(self.trajectory))

    def before_turn(self, index: int) -> tuple[Message, ...]:
        """What was said before a turn of the trajectory, as one conversation; the latest rules stand first."""
        return conversation(self.prompt.messages, self.trajectory[:index])

    @property
    def call(self) -> Message | None:
        """The completion as a message where it ends in calls, as of an episode that was cut; else None."""
        message = self.trajectory[last_turn(self.trajectory)].message if self.trajectory else {}
        return message if message.get("tool_calls") else None


@dataclass(frozen=True, slots=True)
class TokenValues:
    """What an advantage with a critic gets for one completion, besides its rollout and score.

    Example:
        TokenValues(values_T1=np.array([0.2, 0.5, 0.9], np.float32), ref_T=np.array([-0.1, -0.7], np.float32))
    """

    values_T1: npt.NDArray[np.float32]
    """The critic's value of the state before each token and, last, of the state after the last one: ``[T + 1]``."""
    ref_T: npt.NDArray[np.float32] | None = None
    """Logprobs under the reference policy; None when nothing needs them."""

    def __post_init__(self) -> None:
        _freeze(self, "values_T1", "ref_T")


@dataclass(frozen=True, slots=True)
class Advantages:
    """Output of an advantage estimator for one rollout batch.

    ``values[i]`` is a float (the same for every token of completion i), an array ``[T_i]`` of token
    advantages, or None where the completion must not be trained on (missing score).
    """

    values: Sequence[float | npt.NDArray[np.float32] | None]
    """None: not trained on."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    returns: Sequence[npt.NDArray[np.float32] | None] | None = None
    """With a critic: its targets, ``[T_i]``, None where there is no advantage."""


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """One question to a judge.

    Example:
        JudgeRequest("prompt/3:ab", ({"role": "user", "content": "Which answer is better?"},), system="You grade.")
    """

    id: str
    messages: tuple[Message, ...]
    system: str = ""
    """Instructions that many requests share; a judge may cache them."""
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    """For judges that can be seeded; it also distinguishes repeated questions at a temperature above 0."""

    def __post_init__(self) -> None:
        _freeze(self, "messages")


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """What a judge answered; like a missing score, a missing answer is a status and never an empty text."""

    text: str | None
    """None where ``status`` is not ``ok``."""
    status: ScoreStatus = ScoreStatus.OK
    detail: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    """What this answer cost; 0 for a local model and for an answer kept from before."""
    cached: bool = False

    def __post_init__(self) -> None:
        if self.status is ScoreStatus.OK and self.text is None:
            raise ValueError("a reply with status 'ok' needs a text")

    @property
    def ok(self) -> bool:
        """True when ``text`` may be used."""
        return self.status is ScoreStatus.OK

    @classmethod
    def failed(cls, status: ScoreStatus, detail: str) -> JudgeReply:
        """No answer. Example: ``JudgeReply.failed(ScoreStatus.TIMEOUT, "no answer in 60 s")``"""
        return cls(text=None, status=status, detail=detail)
