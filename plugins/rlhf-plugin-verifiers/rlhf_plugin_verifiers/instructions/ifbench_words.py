"""IFBench's instructions about words and counts (Pyatkin et al. 2025, arXiv:2507.02833)."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from rlhf_plugin_verifiers.instructions.lexicon import (
    CONJUNCTIONS,
    MARKS,
    NAMES,
    PRONOUNS,
    STOP_WORDS,
    bare,
    is_verb,
    syllables,
)
from rlhf_plugin_verifiers.instructions.sentences import count_words, sentences, word_tokens

PRIMES = frozenset({2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97})
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


def word_count_range(text: str, *, min_words: float, max_words: float) -> bool:
    """Between so many and so many words."""
    return min_words <= count_words(text) <= max_words


def unique_word_count(text: str, *, N: float) -> bool:
    return len({w.strip(MARKS) for w in text.lower().split()}) >= N


def conjunctions(text: str, *, small_n: float) -> bool:
    """At least so many different coordinating conjunctions; the reference counts spellings, "And" and "and"."""
    return len({w for w in text.split() if w.strip(MARKS).lower() in CONJUNCTIONS}) >= small_n


def person_names(text: str, *, N: float) -> bool:
    return sum(re.search(rf"\b{name}\b", text) is not None for name in NAMES) >= N


def numbers(text: str, *, N: float) -> bool:
    """Exactly N numbers, punctuation within them ignored."""
    return len(re.findall(r"\d+", bare(text))) == N


def pronouns(text: str, *, N: float) -> bool:
    return sum(w in PRONOUNS for w in word_tokens(text.replace("/", " ").lower())) >= N


def punctuation(text: str) -> bool:
    """Every standard mark, and an interrobang beside them."""
    if not re.search(r"!\?|\?!|‽", text):
        return False
    remainder = text.replace("?!", "", 1) if "?!" in text else text.replace("!?", "", 1)
    return set(".,!?;:") <= set(remainder)


def words_japanese(text: str, *, N: float) -> bool:
    """Every N-th word is Japanese; numbers are let pass."""
    nth = [w.strip(MARKS) for i, w in enumerate(text.split(), 1) if i % N == 0]
    return all(_JAPANESE.search(w) or w.isdigit() or not w for w in nth)


def keywords_multiple(text: str, *, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """The keywords occur once, twice, three, five and seven times, also inside words."""
    expected_counts = zip((keyword1, keyword2, keyword3, keyword4, keyword5), (1, 2, 3, 5, 7))
    return all(text.lower().count(k.strip().lower()) == n for k, n in expected_counts)


def stop_words(text: str, *, percentage: float) -> bool:
    words = re.findall(r"\w+", text.lower())
    return bool(words) and 100 * sum(w in STOP_WORDS for w in words) / len(words) <= percentage


def overlap(text: str, *, reference_text: str, percentage: float) -> bool:
    """So many percent, give or take two, of the response's character trigrams are the reference's."""
    response_trigrams, reference_trigrams = ({t[i : i + 3] for i in range(len(t) - 2)} for t in (text, reference_text))
    return (
        bool(response_trigrams)
        and abs(100 * len(response_trigrams & reference_trigrams) / len(response_trigrams) - percentage) <= 2
    )


def alphabet(text: str) -> bool:
    """Each word begins with the next letter of the alphabet, after Z with A."""
    first = [w[0].lower() for w in bare(text).split()]
    if not first or first[0] not in "abcdefghijklmnopqrstuvwxyz":
        return False
    return all(b == chr(97 + (ord(a) - 96) % 26) for a, b in pairwise(first))


def vowel(text: str) -> bool:
    """One paragraph with at most three different vowels."""
    return "\n" not in text.strip() and len(set(text.lower()) & set("aeiou")) <= 3


def consonants(text: str) -> bool:
    """Each word has two consonants side by side."""
    return all(re.search(r"[bcdfghjklmnpqrstvwxyz]{2}", w) for w in text.lower().split())


def palindrome(text: str) -> bool:
    """At least ten palindromes of five or more letters."""
    return sum(w == w[::-1] and len(w) >= 5 for w in bare(text).lower().split()) >= 10


def prime_lengths(text: str) -> bool:
    """Every word's length is prime."""
    return all(len(w) in PRIMES for w in bare(text).split())


def repeats(text: str, *, small_n: float) -> bool:
    """No word more than so many times."""
    return max(Counter(bare(text.lower()).split()).values(), default=0) <= small_n


def no_consecutive(text: str) -> bool:
    """No two neighbouring words begin with one letter."""
    return all(a[0] != b[0] for a, b in pairwise(bare(text.lower()).split()))


def odd_even_syllables(text: str) -> bool:
    """Words with odd and even numbers of syllables alternate."""
    parity = [syllables(w) % 2 for w in bare(text).lower().split()]
    return all(a != b for a, b in pairwise(parity))


def start_verb(text: str) -> bool:
    tokens = word_tokens(text)
    return bool(tokens) and is_verb(tokens[0])


def words_position(text: str, *, keyword: str) -> bool:
    """The second word and the last but one are the keyword; a final mark is no word."""
    words = [w.lower() for w in word_tokens(text)]
    last = 3 if words and words[-1] in MARKS else 2
    return len(words) >= last and words[1] == words[-last] == keyword.strip().lower()


def keywords_specific_position(text: str, *, keyword: str, n: float, m: float) -> bool:
    """The m-th word of the n-th sentence is the keyword."""
    all_sentences = sentences(text)
    if len(all_sentences) < n:
        return False
    words = [w for w in word_tokens(all_sentences[int(n) - 1]) if any(map(str.isalnum, w))]
    return len(words) >= m and words[int(m) - 1].lower() == keyword.strip().lower()


def last_first(text: str) -> bool:
    """The last word of each sentence is the first of the next."""
    word_lists = [s.strip(MARKS).lower().split() for s in sentences(text)]
    firsts = [s.lstrip(MARKS).lower().split() for s in sentences(text)]
    return all(a and b and a[-1] == b[0] for a, b in zip(word_lists, firsts[1:]))


def paragraph_last_first(text: str) -> bool:
    """Each paragraph ends with the word it began with."""
    word_lists = [p.strip().lower().strip(MARKS).split() for p in text.split("\n")]
    return all(words[0] == words[-1] for words in word_lists if words)
