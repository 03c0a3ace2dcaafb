"""Configurations; nothing here imports more than pydantic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import Config, component
from rlhf_core.rewards import VerifierConfig
from rlhf_plugin_code.config import SandboxSettings

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext


class LeftBehindConfig(VerifierConfig):
    """Runs a program in the sandbox and judges what it leaves in a global variable; a subclass says by what check."""

    name: str
    component: ClassVar[str] = "rlhf_plugin_discover.verifier:Construction"
    needs_answer: ClassVar[bool] = False
    variable: str = Field(default="points", pattern=r"^[^\W\d]\w*$")
    """The global variable that the program must leave behind: numbers, texts, lists, dicts."""
    extract: Literal["last_block", "first_block", "strict", "none"] = "last_block"
    """Where the program is: in the last or the first Markdown code block (the whole text if there is none), in exactly
    one block, or the whole text."""
    sandbox: SandboxSettings = SandboxSettings(timeout_s=30.0)
    """What a program may use."""
    check_s: float = Field(default=20.0, gt=0)
    """Seconds that the check itself may take."""

    def preflight(self, ctx: BuildContext) -> None:
        """Load the check, start a sandbox and print how it isolates programs."""
        from rlhf_plugin_code.preflight import announce

        self.checker()
        announce(self.sandbox)

    def conditions(self) -> dict[str, str]:
        from rlhf_plugin_code.preflight import isolation

        return {"isolation": isolation(self.sandbox)}

    def checker(self) -> Any:
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """The longest that a verdict takes; the pool's deadline must be later."""
        return self.sandbox.timeout_s + self.check_s + 2.0

    @property
    def busy_seconds(self) -> float:
        """The longest that a verdict takes on a busy machine."""
        return self.sandbox.busy_seconds + self.check_s


class ConstructionConfig(LeftBehindConfig):
    """Runs a program in the sandbox and judges what it leaves in a global variable, by a check of yours.

    The check is a Python file of your own with ``check(value)``, which returns a number, the larger the better, and
    raises ``ValueError`` with the exact reason where the value is not valid. It is trusted and runs outside the
    sandbox.
    """

    name: str = "construction"
    check: str
    """The file that holds ``check(value)``; the value is plain JSON data."""

    def checker(self) -> Any:
        from rlhf_plugin_discover.verifier import load_check

        return load_check(self.check)


class KissingConfig(LeftBehindConfig):
    """Runs a program that leaves integer vectors in ``points`` and counts them, if they are a kissing configuration.

    Decided in exact arithmetic: no zero vector, and the smallest squared distance of two vectors is at least the
    largest squared norm.
    """

    name: str = "kissing"
    dimensions: int = Field(default=11, ge=1, le=15)
    """Of the space; above 15 valid sets may be larger than the check looks at."""

    def checker(self) -> Any:
        from rlhf_plugin_discover.verifier import kissing_check

        return kissing_check(self.dimensions)


class Budget(Config):
    rounds: int = Field(default=10, ge=1)
    """Rounds of best-of-N."""
    calls: int | None = Field(default=None, ge=1)
    """Questions to the judge; kept answers are not counted."""
    seconds: float | None = Field(default=None, gt=0)
    """Seconds on the clock; a round that has begun is finished."""
    usd: float | None = Field(default=None, gt=0)
    """Money, as the judge's replies tell it. A round is made smaller when its dearest answers so far would exceed it;
    the judge's own cap is the hard one."""
    target: float | None = None
    """A score that is good enough."""


class DiscoverConfig(Config):
    """How to look for a better program."""

    judge: component("judge")  # pyright: ignore[reportInvalidTypeForm]
    """The model that proposes."""
    samples: int = Field(default=8, ge=1)
    """Proposals of a round: so many conversations go on side by side (best-of-N)."""
    history: int = Field(default=2, ge=0)
    """Failed attempts, each with its exact verdict, that a conversation shows after the best program it builds on."""
    patience: int = Field(default=4, ge=1)
    """Attempts without progress after which a conversation begins again from another program of the archive."""
    temperature: float = Field(default=1.0, ge=0)
    max_tokens: int = Field(default=4096, ge=1)
    """Tokens of one proposal."""
    failures: int = Field(default=2, ge=1)
    """Rounds without one usable answer after which discovery gives up."""
    archive: int = Field(default=16, ge=1)
    """Programs that are kept as starting points, best first, one per score."""
    feedback_characters: int = Field(default=2000, ge=100)
    """Longer verdicts are cut."""
    workers: int = Field(default=2, ge=1, le=1024)
    """Processes that verify."""
    seed: int = Field(default=0, ge=0, lt=2**64)
    budget: Budget = Budget()
