"""The 29 training instructions of IF-RLVR (Pyatkin et al. 2025, arXiv:2507.02833, appendix), as the rows of
IF_multi_constraints name them, by their own text; the published checks pay for less, or for something else."""

from __future__ import annotations

import re

from rlhf_plugin_verifiers.instructions import ifeval
from rlhf_plugin_verifiers.instructions.by_text import BY_TEXT, firsts, neighbours, occurrences, spoken, words
from rlhf_plugin_verifiers.instructions.sentences import sentences

letter_counting2 = ifeval.letter_frequency
keyword_specific_position = BY_TEXT["words:keywords_specific_position"]


def repeat_phrase(text: str, *, phrase: str, small_n: float) -> bool:
    """So many times, each with one word between its first and last replaced."""
    wanted, said = words(phrase), words(text)
    windows = [said[i : i + len(wanted)] for i in range(len(said) - len(wanted) + 1)]
    variants = [w for w in windows if (w[0], w[-1]) == (wanted[0], wanted[-1])]
    return len(variants) == small_n and all(sum(a != b for a, b in zip(w, wanted)) == 1 for w in variants)


def copying(text: str, *, prompt_to_repeat: str) -> bool:
    """The request and nothing else."""
    return text.split() == prompt_to_repeat.split()


def copying_multiple(text: str, *, prompt_to_repeat: str, N: float) -> bool:
    parts = text.split("******")
    return len(parts) == N and all(part.split() == prompt_to_repeat.split() for part in parts)


def copy_span_idx(text: str, *, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """From the first index to the last, both included."""
    return text.split() == prompt_to_repeat[int(n_start) : int(n_end) + 1].split()


def sentence_hyphens(text: str) -> bool:
    """Several sentences, joined by hyphens without a space."""
    return len(sentences(text)) == 1 and re.search(r"[.?!][\"')\]]*-\w", text) is not None


def no_adjacent_consecutive(text: str) -> bool:
    """No word begins with the letter that follows the first one of the word before."""
    return neighbours(firsts(text), lambda a, b: ord(b) - ord(a) != 1)


def square_brackets(text: str) -> bool:
    """Each word by itself."""
    return bool(words(text)) and all(re.fullmatch(r"\[[^\[\]]+\][.,;:!?]*", token) for token in text.split())


def word_once(text: str, *, keyword: str) -> bool:
    """The text asks for the word, the published check for one occurrence."""
    return occurrences(text, keyword) > 0


def word_count(text: str, *, keyword: str, frequency: float) -> bool:
    """The text names the number alone; the published check goes by a relation that it does not name."""
    return occurrences(text, keyword) == frequency


def exclude_word(text: str, *, keyword: str) -> bool:
    return not occurrences(text, keyword)


def paragraphs(text: str) -> bool:
    """Two, parted by ``***``."""
    return _parts(text, r"\*\*\*") == 2


def paragraphs2(text: str) -> bool:
    """Two, parted by an empty line."""
    return _parts(text.strip(), r"\n\n+") == 2


def _parts(text: str, divider: str) -> int:
    """How many parts there are; 0 if one between two dividers has no words."""
    parts = [words(part) for part in re.split(divider, text)]
    return sum(map(bool, parts)) if all(parts[1:-1]) else 0


def _each(text: str, word: str, at: int) -> bool:
    said = spoken(text)
    return bool(said) and all(sentence[at] == word.strip().lower() for sentence in said)


def first_word_sent(text: str, *, first_word: str) -> bool:
    return _each(text, first_word, 0)


def last_word_sent(text: str, *, last_word: str) -> bool:
    return _each(text, last_word, -1)


def first_word_answer(text: str, *, first_word: str) -> bool:
    return words(text.lower())[:1] == [first_word.strip().lower()]


def last_word_answer(text: str, *, last_word: str) -> bool:
    return words(text.lower())[-1:] == [last_word.strip().lower()]


def bigram_wrapping(text: str) -> bool:
    """Every two words in ``<<so done>>``; of an odd number the last may stand alone."""
    pattern = r"<<[^<>\s]+\s+[^<>\s]+>>[.,;:!?]*"
    return re.search(pattern, text) is not None and len(re.sub(pattern, " ", text).split()) <= 1


def punctuation_dot(text: str) -> bool:
    return "." not in text


def punctuation_exclamation(text: str) -> bool:
    return "!" not in text


def lowercase_counting(text: str, *, N: float) -> bool:
    """At most so many words in lower case, and there are words."""
    said = words(text)
    return bool(said) and sum(map(str.islower, said)) <= N


def letter_counting(text: str, *, N: float, relation: str) -> bool:
    return ifeval.holds(sum(map(str.isalpha, text)), relation, N)


def counting_composition(text: str, *, n_sent: float, n_words: float) -> bool:
    """Three paragraphs, parted by ``* * *`` or ``***``, of so many sentences of so many words each."""
    parts = [spoken(part) for part in re.split(r"\* ?\* ?\*", text)]
    return len(parts) == 3 and all(len(p) == n_sent and all(len(s) == n_words for s in p) for p in parts)


def count_unique(text: str) -> bool:
    """No word twice, in any case."""
    said = words(text.lower())
    return bool(said) and len({*said}) == len(said)


def count_increment_word(text: str, *, keyword1: str, keyword2: str) -> bool:
    return (occurrences(text, keyword1), occurrences(text, keyword2)) == (1, 2)


def palindrome(text: str) -> bool:
    """One of three letters or more: "a" is none."""
    return any(len(w) > 2 and w.isalpha() and w == w[::-1] for w in words(text.lower()))


def start_end(text: str) -> bool:
    """The first word is the last, and nothing comes after it."""
    said = words(text.lower())
    return len(said) > 1 and said[0] == said[-1] and text.strip().lower().endswith(said[-1])
