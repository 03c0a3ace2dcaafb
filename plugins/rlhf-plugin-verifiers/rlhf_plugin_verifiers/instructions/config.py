"""Configuration of the instruction-following verifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from rlhf_core.rewards import VerifierConfig

if TYPE_CHECKING:
    from rlhf_core.data import Prompt


class IFEvalConfig(VerifierConfig):
    """Checks the instructions that a row lists in ``instruction_id_list`` with their ``kwargs``: the 25 types of IFEval
    (arXiv:2311.07911) and the 58 of IFBench (arXiv:2507.02833).

    Parts: ``answer`` all instructions followed, ``instructions`` the share that was (instruction-level accuracy), and
    both again under the other mode as ``strict``/``loose`` and ``strict_instructions``/``loose_instructions``.
    """

    name: str = "ifeval"
    component: ClassVar[str] = "rlhf_plugin_verifiers.instructions.verifier:InstructionVerifier"
    needs_answer: ClassVar[bool] = False
    mode: Literal["strict", "loose"] = "strict"
    """``loose`` also tries the response without its first line, its last line, and its Markdown stars, and takes what
    follows most; an upper bound."""
    value: Literal["all", "mean"] = "all"
    """``all`` is 1.0 only if every instruction is followed, ``mean`` the share that is."""
    reference: Literal["published", "text"] = "text"
    """What an instruction asks: its own ``text``, for rewards, or what the ``published`` checks ask, which is less or
    something else for most types: take it to compare with published figures, as the benchmarks do."""

    def check_prompt(self, prompt: Prompt) -> str | None:
        """The instructions must be known, and their arguments be there and of their type."""
        from rlhf_plugin_verifiers.instructions.verifier import why_unusable

        return why_unusable(prompt, self.reference)


class IFBenchConfig(IFEvalConfig):
    """IFBench's rows; loose by default, as its paper reports. Both names know all instructions."""

    name: str = "ifbench"
    mode: Literal["strict", "loose"] = "loose"
