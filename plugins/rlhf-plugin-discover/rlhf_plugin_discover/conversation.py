"""What a conversation shows the model: the task, the program that it builds on, failed attempts, exact verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlhf_core.data import Message
from rlhf_plugin_discover.archive import START, Archive, Verdict

SYSTEM = (
    "You search for better and better constructions by writing programs. Every program you write is run, and "
    "what it finds is judged exactly; the verdict is shown to you. Answer with one complete program in one code "
    "block."
)


@dataclass
class Conversation:
    """One of the N lines of attempts that go on side by side."""

    slot: int
    parent: str = START
    """The attempt that it builds on: its own best, or one from the archive."""
    failed: list[str] = field(default_factory=list)
    """Attempts since then that were no better, oldest first."""

    def take(self, verdict: Verdict, archive: Archive) -> None:
        if verdict.worth > archive.verdicts[self.parent].worth:
            self.build_on(verdict.id)
        else:
            self.failed.append(verdict.id)

    def build_on(self, parent: str) -> None:
        self.parent, self.failed = parent, []


def messages(
    question: str, unit: str, parent: Verdict, failed: Sequence[Verdict], best: float, max_characters: int
) -> tuple[Message, ...]:
    turns: list[Message] = [{"role": "user", "content": question}]
    if parent.program.strip():
        instruction = f"{verdict_text(parent, unit, max_characters)}{beyond(parent, unit, best)} {IMPROVE}"
        if parent.id == START:
            turns[0] = {
                "role": "user",
                "content": f"{question}\n\nBegin with this program:\n\n{fenced(parent.program)}\n\n{instruction}",
            }
        else:
            turns += [
                {"role": "assistant", "content": fenced(parent.program)},
                {"role": "user", "content": instruction},
            ]
    for verdict in failed:
        turns += [
            {"role": "assistant", "content": fenced(verdict.program)},
            {
                "role": "user",
                "content": f"{verdict_text(verdict, unit, max_characters)} {again(verdict, parent, unit)}",
            },
        ]
    return tuple(turns)


IMPROVE = "Propose a program with a higher score: extend the construction, or find a better one."


def verdict_text(verdict: Verdict, unit: str, max_characters: int) -> str:
    if wrong := verdict.wrong:
        error = wrong if len(wrong) <= max_characters else wrong[:max_characters] + " [cut]"
        score = f" Its score is {verdict.worth:g} {unit}." if verdict.valid else ""
        return f"This attempt failed with this error:\n\n{error}\n\n{score}".rstrip(" ")
    return f"This program is valid. Its score is {verdict.worth:g} {unit}."


def beyond(parent: Verdict, unit: str, best: float) -> str:
    return f" The best score so far is {best:g} {unit}." if best > parent.worth and parent.valid else ""


def again(verdict: Verdict, parent: Verdict, unit: str) -> str:
    if verdict.wrong:
        return "Find out what in your program is the cause, and propose a corrected program."
    return f"That is not more than the {parent.worth:g} {unit} it was to improve. Try another idea."


def fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"
