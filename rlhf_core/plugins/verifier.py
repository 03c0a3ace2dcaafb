"""Base of the configurations of verifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rlhf_core.plugins.component import ComponentConfig

if TYPE_CHECKING:
    from rlhf_core.types.rollouts import Prompt


class VerifierConfig(ComponentConfig):
    """Base of a verifier's Config. It is built in a worker process: the context has a registry, no run config."""

    needs_answer: ClassVar[bool] = True
    """Whether the verdict compares with ``Prompt.answer``; if so, a dataset without answers is refused."""

    def check_prompt(self, prompt: Prompt) -> str | None:
        """Why no completion of this prompt could be judged (for example a reference answer that does not parse); None
        if it can. Called for every row when the dataset loads, so it must be quick; the error names file and line.
        """
        return None

    @property
    def asked_form(self) -> tuple[str, ...]:
        """Strings that no completion brings unless its prompt asks for them, such as ``<answer>``, and without which
        every verdict is 0. A run whose prompts do not hold them is refused.
        """
        return ()

    @property
    def seconds(self) -> float:
        """The longest that a verdict takes with these settings, by the verifier's own deadlines; 0 if it has none."""
        return 0.0

    @property
    def busy_seconds(self) -> float:
        """The longest that a verdict takes on a machine that is busy with other things; the worker's deadline unless
        the user sets one.
        """
        return self.seconds

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables with keys or tokens that its worker needs, which gets no others of that kind."""
        return ()
