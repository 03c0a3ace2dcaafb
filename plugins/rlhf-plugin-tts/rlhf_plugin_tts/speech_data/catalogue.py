"""Thirty sentences in six categories, and six descriptions of a voice."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SENTENCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "conversational": (
            "Hey, how was your weekend?",
            "Could you pass me the salt, please?",
            "I think we should leave before it rains.",
            "No problem, I will call you back tonight.",
            "Did you see the game last night?",
        ),
        "expressive": (
            "I can't believe we actually won!",
            "What a beautiful morning this is!",
            "Stop! Don't touch that wire!",
            "Oh no, I left my bag on the train.",
            "This is the best day of my life!",
        ),
        "informational": (
            "The museum opens at ten and closes at six.",
            "Water boils at one hundred degrees.",
            "The next train leaves from platform four.",
            "Rain is expected in the north tomorrow.",
            "The library has over two million books.",
        ),
        "instructional": (
            "Turn left at the next corner.",
            "Mix the flour with two cups of milk.",
            "Press the red button to start the machine.",
            "Fold the paper in half and cut along the line.",
            "Wait for the light to turn green.",
        ),
        "narrative": (
            "Once upon a time there lived an old king.",
            "The door opened slowly, and nobody was there.",
            "She walked along the river until the sun went down.",
            "He put the letter in a drawer and forgot it.",
            "Far away, a single bell began to ring.",
        ),
        "technical": (
            "The server returned an error code.",
            "Each layer adds its output to the input.",
            "The voltage drops when the load increases.",
            "Memory is freed when the process ends.",
            "The signal is sampled every ten milliseconds.",
        ),
    }
)
"""Category -> five sentences."""

DESCRIPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "clear": "a clear voice",
        "lively": "a clear, lively voice",
        "calm": "a clear, calm voice",
        "flat": "a flat, monotonous voice",
        "rough": "a rough, noisy voice",
        "hurried": "a rough, hurried voice",
    }
)
"""Name -> what the system turn says."""

CONTRASTS = (("lively", "flat"), ("clear", "rough"), ("calm", "hurried"))
"""(better, worse) descriptions of pairs by description. Which is better is this table's opinion, not a listener's."""


def sentences() -> list[tuple[str, str, str]]:
    """(name, category, text) of every sentence. Example: ``("expressive-2", "expressive", "What a ...")``"""
    return [(f"{kind}-{n}", kind, text) for kind, texts in SENTENCES.items() for n, text in enumerate(texts, 1)]
