"""The component kinds. Structural: a class that has the methods is one; there is nothing to inherit.

Losses, engines that take weights and strategies see torch; everything else exchanges plain Python and numpy
(``rlhf_core.types.rollouts``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlhf_core.plugins.strategy_protocols import Strategy as Strategy
from rlhf_core.types.messages import ToolResult
from rlhf_core.types.rollouts import (
    Advantages,
    JudgeReply,
    JudgeRequest,
    Prompt,
    PromptGroup,
    Rollout,
    RolloutRequest,
    Sample,
    SamplingParams,
    Score,
    ToolCall,
)

if TYPE_CHECKING:
    import torch

    from rlhf_core.types.batches import LossOutput


@runtime_checkable
class Trainer(Protocol):
    """Owns one run from step 0 to the final model."""

    def run(self) -> Mapping[str, Any]:
        """Train, and return what goes into ``summary.json``."""
        ...


@runtime_checkable
class RewardModel(Protocol):
    """Scores completions. One sample's score must not depend on the others in the call."""

    def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """Return one :class:`Score` per sample, in order."""
        ...


@runtime_checkable
class Verifier(Protocol):
    """Checks one completion against its reference answer. Runs in a worker that may be killed."""

    def verify(self, sample: Sample) -> Score:
        """Return the verdict, 1.0 right and 0.0 wrong unless documented otherwise."""
        ...


@runtime_checkable
class Judge(Protocol):
    """A language model, behind a service or in this process, that answers questions about texts (ADR 0010)."""

    def ask(self, requests: Sequence[JudgeRequest]) -> Sequence[JudgeReply]:
        """Return one :class:`JudgeReply` per request, in order; one that cannot be answered has a status, no text."""
        ...


@runtime_checkable
class Loss(Protocol):
    """Returns an unreduced loss; the core masks and divides by the global denominator."""

    def __call__(self, batch: Any) -> LossOutput:
        """Map a ``TokenBatch`` or ``PairBatch`` to ``loss_BT`` or ``loss_B``."""
        ...


@runtime_checkable
class Advantage(Protocol):
    """Turns the scores of one rollout batch into advantages."""

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        """Return one advantage per rollout. ``group_ids[i]`` is the prompt that rollout i belongs to.

        Called on rank 0, with the rollouts of all ranks.
        """
        ...


@runtime_checkable
class CriticAdvantage(Protocol):
    """Optional for an advantage: it has a critic, which is trained beside the policy (ADR 0008).

    Its ``estimate`` takes a fourth argument, one ``TokenValues`` per rollout, subtracts the KL penalty that
    ``trainer.kl`` puts into the reward, and returns token advantages and ``Advantages.returns``.
    """

    critic: Any
    """A ``torch.nn.Module``: ``critic(prompts, completions, hidden_NH)`` returns ``values_N`` of the state before each
    completion token, row after row. The core optimizes, shards and saves its trainable parameters."""
    on_policy_trunk: bool
    """``hidden_NH`` are the policy's hidden states there; otherwise None."""
    learning_rate: float | None
    """The critic's own; None takes the policy's."""
    warmup_steps: int
    """During this many steps only the critic learns."""

    def with_value_loss(self, loss: Loss) -> Loss:
        """Return a loss that adds the critic's own, unreduced, to the policy's."""
        ...


@runtime_checkable
class RolloutEngine(Protocol):
    """Samples completions from the current policy."""

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        """Return one rollout per request, in order."""
        ...


@runtime_checkable
class WeightReceiver(Protocol):
    """Optional for a rollout engine that holds its own copy of the policy's weights (another process, another device).

    An engine without it samples from the policy object that it was built with. One whose attribute ``in_flight`` is
    true is called while another thread is in its ``generate``, whose completions go on with the new weights and say
    so in ``Rollout.versions`` (ADR 0020). ``generate`` raises where another version is asked for than the one that was
    sent; with ``in_flight`` a newer one may answer.
    """

    def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the policy's weights; every later ``generate`` samples from them.

        Args:
            version: the policy version, as ``generate`` will name it.
            tensors: whole trained weights by parameter name (with LoRA the adapter's), on any device; not to be changed
                or kept.
        """


@runtime_checkable
class MemoryReleaser(Protocol):
    """Optional for a rollout engine that shares the device that the policy is trained on."""

    def release_memory(self) -> bool:
        """Give memory back before the policy is updated; the next ``generate`` takes it again.

        Returns whether the weights went too: then ``update_weights`` comes before the next ``generate``.
        """
        ...


@runtime_checkable
class ReportsProgress(RolloutEngine, Protocol):
    """Optional for a rollout engine: while it samples it calls ``on_ended``, where that is not None."""

    on_ended: Callable[[int], None] | None
    """Takes how many more completions have ended. None at first; who shows progress sets it for as long."""


@runtime_checkable
class TurnStream(Protocol):
    """Turns of many episodes, sampled as they come; made by :class:`StreamingEngine`.

    An episode has one turn under way at most. What an engine may keep between its turns is the engine's business: a
    context that does not continue the one before is read anew.
    """

    @property
    def waiting(self) -> int:
        """Turns that were submitted and not taken."""
        ...

    def submit(self, episode: Hashable, request: RolloutRequest) -> None:
        """Add the next turn of an episode; ``request.prompt_ids`` is its whole context."""

    def take(self, steps: int | None = None) -> list[tuple[Hashable, Rollout]]:
        """Return the turns that have ended since the last call, each with its episode.

        Samples until there is one; with ``steps`` at most about so many tokens of each turn, and maybe nothing.
        """
        ...

    def forget(self, episode: Hashable) -> None:
        """The episode has no further turn."""

    def close(self) -> None:
        """Turns under way are given up; idempotent."""


@runtime_checkable
class StreamingEngine(Protocol):
    """Optional for a rollout engine: turns are sampled as they come (ADR 0016)."""

    def open_stream(self, sampling: SamplingParams, policy_version: int) -> TurnStream | None:
        """Return a stream over the weights of now; None where this model cannot be sampled so."""
        ...


@runtime_checkable
class Agent(Protocol):
    """Plays an episode: from prompts to rollouts, calling the engine as often as it needs (tools, turns)."""

    def play(
        self,
        groups: Sequence[PromptGroup],
        seeds: Sequence[Sequence[int]],
        engine: RolloutEngine,
        sampling: SamplingParams,
        policy_version: int,
    ) -> list[Rollout]:
        """Return ``group_size`` rollouts per group, group by group. ``seeds[p][g]`` seeds completion g of group p."""
        ...


@runtime_checkable
class Environment(Protocol):
    """What a policy acts in; one object for each episode, in a process that is killed when it is late.

    Optional: ``close()``; ``respond(text)``, with ``responds`` in its Config, answers a turn without calls (None ends
    the episode); ``state_dict()`` and ``load_state_dict(state)``, JSON values, for one whose Config is not ``pure``.

    What it raises is its own fault, and the episode has no score; a :class:`~rlhf_core.types.messages.ToolError` is the
    policy's, which reads it.
    """

    def reset(self, prompt: Prompt, seed: int) -> None:
        """Begin an episode; ``seed`` alone decides what is random in it."""

    def step(self, calls: Sequence[ToolCall]) -> Sequence[ToolResult | str]:
        """Return one result per call, in order; the calls have been checked against the schemas of their tools."""
        ...

    def score(self, sample: Sample) -> Score | float | None:
        """Score the episode, whose last answer is ``sample.completion``; None leaves that to the run's reward."""
        ...


@runtime_checkable
class Tool(Protocol):
    """A function that the policy may call; what it raises is shown to the policy."""

    def call(self, **arguments: Any) -> str:
        """Answer one call, whose arguments have been checked against the schema."""
        ...


@runtime_checkable
class DatasetSource(Protocol):
    """Rows of one dataset."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of ``"train"`` or ``"heldout"`` (empty if the source has no such split)."""
        ...


@runtime_checkable
class GoldScorer(Protocol):
    """Optional for a dataset source: a score that neither policy nor reward ever sees."""

    def gold(self, sample: Sample) -> Mapping[str, float]:
        """Return ``{"value": ..., part: ...}`` for one completion."""
        ...


@runtime_checkable
class Benchmark(Protocol):
    """Evaluates a policy."""

    def evaluate(self, engine: RolloutEngine, policy_version: int) -> Mapping[str, float]:
        """Return metrics by name."""
        ...


@runtime_checkable
class Study(Protocol):
    """A measurement that anybody can repeat, seed by seed.

    Optional: ``save(results, folder)`` writes what else there is (plots, CSV) beside ``result.json``.
    """

    def run(self, seed: int, folder: Path) -> Mapping[str, Any]:
        """Return the figures of one seed, as JSON values. What is done in ``folder`` is kept and not done again."""
        ...

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        """Return what the figures of the seeds come to, in Markdown."""
        ...


@runtime_checkable
class Monitor(Protocol):
    """Watches the metrics of each step."""

    def observe(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """Return a warning (cause and the setting to change) or None. Raise ``StopRun`` to end the run."""
        ...


@runtime_checkable
class Tracker(Protocol):
    """Sends metrics somewhere."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step."""

    def close(self) -> None:
        """Flush; called once at the end, also after a failure."""


@runtime_checkable
class Stateful(Protocol):
    """Optional, for any component but a verifier: state that exact resume must restore.

    It is saved with every checkpoint, by each rank its own, and restored when everything is built. A reward that is
    itself a torch module is taken for a frozen network and left out.
    """

    def state_dict(self) -> dict[str, Any]:
        """JSON values, numpy arrays and tensors only."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""


@runtime_checkable
class Closeable(Protocol):
    """Optional, for any component: it holds processes or files. Closed at the end of a run, also of a failed one."""

    def close(self) -> None:
        """Release them; idempotent."""
