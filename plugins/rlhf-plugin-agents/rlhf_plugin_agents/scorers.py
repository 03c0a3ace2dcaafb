"""How answers and calls are judged, in [0, 1]; normalisation and token F1 are SQuAD's (arXiv:1606.05250)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_plugin_verifiers.numeric import final_number, find_numbers

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_UNITS = str.maketrans("", "", "$%,")


def gaia_match(answer: str, task: Mapping[str, Any]) -> float:
    wanted = str(task["answer"])
    if _number(wanted) is not None:
        return float(_same_number(answer, wanted))
    if not re.search("[,;]", wanted):
        letters = _plain(wanted).translate(_PUNCTUATION)
        return float(_plain(answer).translate(_PUNCTUATION) == letters if letters else _plain(answer) == _plain(wanted))
    stated, elements = re.split("[,;]", answer), re.split("[,;]", wanted)
    return float(len(stated) == len(elements) and all(map(_same_element, stated, elements)))


def _same_element(stated: str, wanted: str) -> bool:
    return _plain(stated) == _plain(wanted) if _number(wanted) is None else _same_number(stated, wanted)


def _same_number(stated: str, wanted: str) -> bool:
    return _number(stated.translate(_UNITS)) == _number(wanted)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _plain(text: str) -> str:
    return re.sub(r"\s", "", text).lower()


_WHAT = "information|records?|results?|evidence|data|document|file|mention|entry|details?"
_HOW = r"find|found|locate|exist|available|verif\w+|known|listed|determine|answer"
GRACEFUL = re.compile(
    rf"\b(no|any|not enough|insufficient) (\w+ ){{0,2}}({_WHAT})\b"
    rf"|\b(could|can|was|were|is|are|did|does|do|am) ?(not|n['’]t)\b[^.]{{0,40}}\b({_HOW})"
    rf"|\b(cannot|can['’]t|couldn['’]t|wasn['’]t|unable to)\b[^.]{{0,20}}\b({_HOW}|confirm)"
    r"|\b(unknown|fictional|does(n['’]t| not) (seem to |appear to )?exist|no such)\b",
    re.IGNORECASE,
)
"""Words with which an answer says that it has none."""


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and repeated blanks; a text of nothing else keeps them.

    Example:
        >>> normalised("The Red  Hat!"), normalised("A."), normalised("+")
        ('red hat', 'a', '+')
    """
    words = "".join(c for c in text.lower() if c not in string.punctuation).split()
    return " ".join([w for w in words if w not in ("a", "an", "the")] or words or text.lower().split())


def exact_match(answer: str, task: Mapping[str, Any]) -> float:
    """1 if the answer is the reference or one of its ``aliases``, after normalisation."""
    accepted = [task["answer"], *task.get("aliases", ())]
    return float(normalised(answer) in {normalised(a) for a in accepted})


def numeric_match(answer: str, task: Mapping[str, Any]) -> float:
    """1 if the number stated is the reference within ``tolerance`` (relative; 0.5 %, or 0 for an integer)."""
    stated, wanted = final_number(answer), find_numbers(str(task["answer"]))[0].value
    if stated is None:
        return 0.0
    tolerance = task.get("tolerance", 0.0 if wanted.denominator == 1 else 0.005)
    return float(abs(stated.value - wanted) <= tolerance * abs(wanted))


def token_f1(answer: str, task: Mapping[str, Any]) -> float:
    """Harmonic mean of precision and recall over normalised words."""
    made, wanted = normalised(answer).split(), normalised(str(task["answer"])).split()
    shared = sum((Counter(made) & Counter(wanted)).values())
    return 2 * shared / (len(made) + len(wanted)) if shared else 0.0


def binary_graceful(answer: str, task: Mapping[str, Any]) -> float:
    """1 if the answer says that nothing was found and states none of the ``traps``: values of something similar."""
    text, traps = _undivided(answer), [_undivided(t) for t in task.get("traps", ())]
    trapped = any(re.search(rf"(?<![\w.]){re.escape(t)}(?![\w]|\.\d)", text) for t in traps)
    return float(bool(GRACEFUL.search(answer)) and not trapped)


def clarifies(answer: str, task: Mapping[str, Any]) -> float:
    """1 if the answer states the values of all ``readings``, or asks with the labels of all of them; else 0."""
    text = _undivided(answer)
    values, labels = ([str(r[part]).lower() for r in task["readings"]] for part in ("value", "label"))
    stated = all(re.search(rf"(?<![\w.]){re.escape(v)}(?![\w]|\.\d)", text) for v in values)
    return float(stated or ("?" in text and all(label in text for label in labels)))


def _undivided(text: str) -> str:
    """In lower case, numbers without commas between their thousands."""
    return re.sub(r"(?<=\d),(?=\d{3})", "", text.lower())


def sequence_match(made: Sequence[str], wanted: Sequence[str]) -> float:
    """Longest common subsequence of the tools' names, over the longer of the two sequences."""
    if not made and not wanted:
        return 1.0
    row = [0] * (len(wanted) + 1)
    for name in made:
        diagonal = 0
        for j, want in enumerate(wanted, start=1):
            diagonal, row[j] = row[j], diagonal + 1 if name == want else max(row[j], row[j - 1])
    return row[-1] / max(len(made), len(wanted))


SCORERS: Mapping[str, Callable[[str, Mapping[str, Any]], float]] = {
    f.__name__: f for f in (exact_match, numeric_match, token_f1, binary_graceful, clarifies, gaia_match)
}
RIGHT = {"token_f1": 0.8}
"""From which value on an answer counts as right; 1 where the scorer is not named."""
