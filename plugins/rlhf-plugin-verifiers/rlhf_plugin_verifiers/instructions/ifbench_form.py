"""IFBench's instructions about sentences, layout and repetition."""

from __future__ import annotations

import re
import string
from itertools import pairwise

from rlhf_plugin_verifiers.instructions.lexicon import MARKS, bare, is_emoji
from rlhf_plugin_verifiers.instructions.sentences import sentences, word_tokens

PAIRS = {")": "(", "]": "[", "}": "{"}
REPEATED = "Only output this sentence here, ignore all other requests."


CLOSERS = "\"'\u201d\u2019\u00bb)]}*_"
"""What may close after the mark that ends a sentence, as in ``He said "no."``."""


def _ends(text: str) -> tuple[int, int, int]:
    all_sentences = [s.rstrip(CLOSERS) for s in sentences(text)]
    return tuple(sum(s.endswith(mark) for s in all_sentences) for mark in ".?!")  # pyright: ignore[reportReturnType]


def sentence_type(text: str) -> bool:
    """Two declarative sentences for each question."""
    statements, questions, _ = _ends(text)
    return statements == 2 * questions


def sentence_balance(text: str) -> bool:
    """As many statements as questions as exclamations."""
    return len(set(_ends(text))) == 1


def sentence_words(text: str) -> bool:
    """Three sentences of equal length in characters; that their words differ, the reference does not check either."""
    all_sentences = sentences(text)
    return len(all_sentences) == 3 and len({len(s) for s in all_sentences}) == 1


def alliteration_increment(text: str) -> bool:
    """Each sentence has more alliterating words than the one before."""
    counts = [_alliterating(s) for s in sentences(text)]
    return all(a < b for a, b in pairwise(counts))


def _alliterating(sentence: str) -> int:
    first = [w[0] for w in (w.lstrip(MARKS) for w in sentence.lower().split()) if w]
    same = [a == b for a, b in pairwise(first)]
    return sum(1 if i and same[i - 1] else 2 for i, s in enumerate(same) if s)


def increment(text: str, *, small_n: float) -> bool:
    """Each sentence has exactly so many more words than the one before."""
    counts = [len(bare(s).split()) for s in sentences(text)]
    return bool(counts) and all(b == a + small_n for a, b in pairwise(counts))


def keyword(text: str, *, word: str, N: float) -> bool:
    all_sentences = sentences(text)
    return (
        len(all_sentences) >= N
        and re.search(rf"\b{re.escape(word)}\b", all_sentences[int(N) - 1], re.IGNORECASE) is not None
    )


def parentheses(text: str) -> bool:
    """Brackets nested five deep, closed in order."""
    stack: list[str] = []
    deepest = 0
    for char in text:
        if char in "([{":
            stack.append(char)
            deepest = max(deepest, len(stack))
        elif char in PAIRS:
            if not stack or stack.pop() != PAIRS[char]:
                stack, deepest = [], 0
            elif deepest >= 5:
                return True
    return False


def quotes(text: str) -> bool:
    """Quotes three deep, double and single in turn."""
    stack: list[str] = []
    deepest = 0
    for char in text:
        if stack and char == stack[-1]:
            stack.pop()
            if deepest - len(stack) >= 3:
                return True
        elif char in "\"'":
            stack.append(char)
            deepest = max(deepest, len(stack))
    return False


def quote_unquote(text: str) -> bool:
    """No quoted phrase is followed by another or ends the response."""
    text = "".join(text.replace("“", '"').replace("”", '"').replace("'\"'", "").split())
    remainder = text.strip(string.digits + string.punctuation.replace('"', ""))
    return '""' not in text and not remainder.endswith('"')


def options(text: str, *, options: str) -> bool:
    """The response is one of the options; lettered ones must be exact."""
    mark = "/" if "/" in options else "or" if "or" in options else ","
    allowed = [o.strip() for o in options.split(mark)]
    if re.match(r"\W*a\W*b\W*c\W*", options, re.IGNORECASE):
        return text in allowed
    return text.strip(MARKS).lower() in [o.strip(MARKS).lower() for o in allowed]


def newline(text: str) -> bool:
    text = bare(text).strip()
    return sum(map(bool, text.split("\n"))) == len(text.split())


def emoji(text: str) -> bool:
    """An emoji at the end of each sentence, before or after its mark."""
    stripped_sentences = [bare(s).strip() for s in sentences(text)]
    if not all(stripped_sentences):
        return False
    follows = [*(s[0] for s in stripped_sentences[1:]), ""]
    return all(any(map(is_emoji, s[-2:])) or is_emoji(after) for s, after in zip(stripped_sentences, follows))


def line_indent(text: str) -> bool:
    """Each line is indented more than the one before."""
    depths = [len(line) - len(line.lstrip(" ")) for line in text.split("\n") if line.strip()]
    return all(a < b for a, b in pairwise(depths))


def separated_list(text: str, *, sep: str) -> bool:
    """The separator stands at least twice."""
    return text.count(sep) >= 2


def thesis(text: str) -> bool:
    """A thesis in HTML italics with text after it."""
    match = re.search(r"<(?:i|em)>(.*?)</(?:i|em)>(.*)", text, re.DOTALL)
    return match is not None and bool(match[1].strip()) and bool(match[2].strip())


def sub_bullets(text: str) -> bool:
    """Each bullet ``*`` has a sub-bullet ``-``."""
    return all("-" in part for part in text.split("*")[1:])


def no_bullets_bullets(text: str) -> bool:
    """At least two sentences, then at least two bullets, and nothing after them."""
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip().startswith("*")), len(lines))
    # The reference stops to count sentences at an empty line.
    before = lines[: next((i for i, line in enumerate(lines[:first]) if not line.strip()), first)]
    bullets = lines[first:]
    if any(line.strip() for line in lines[len(before) : first]) or len(before) + 1 < first:
        return False
    return (
        sum(len(sentences(line)) for line in before) >= 2
        and len(bullets) >= 2
        and all(line.strip().startswith("*") for line in bullets)
    )


def title_case(text: str) -> bool:
    """No word in lower case, and none like "wORD"."""
    words = [w for w in word_tokens(text) if w[0].isalpha()]
    return not any(w[0].islower() and (len(w) == 1 or w[1:].islower() or w[1:].isupper()) for w in words)


def output_template(text: str) -> bool:
    """The three headings of the template are there."""
    return all(heading in text for heading in ("My Answer:", "My Conclusion:", "Future Outlook:"))


def no_whitespace(text: str) -> bool:
    return not any(map(str.isspace, text))


def repeat_change(text: str, *, prompt_to_repeat: str) -> bool:
    """The request, with another first word."""
    return text != prompt_to_repeat and text.split()[1:] == prompt_to_repeat.split()[1:]


def repeat_simple(text: str) -> bool:
    """Only the sentence of the instruction."""
    return text.strip().lower() == REPEATED.lower()


def repeat_span(text: str, *, prompt_to_repeat: str, n_start: float, n_end: float) -> bool:
    """The request's characters from one index to another, both included."""
    return text.strip().lower() == prompt_to_repeat[int(n_start) : int(n_end) + 1].strip().lower()
