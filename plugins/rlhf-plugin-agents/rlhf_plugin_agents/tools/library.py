"""Search, documents and files over fixtures: the same question always gets the same answer."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rlhf_core.data import DatasetError
from rlhf_core.rollouts import ToolError

DATA = Path(__file__).parents[1] / "data"
PROMPTS: Mapping[str, str] = tomllib.loads((DATA / "prompts.toml").read_text(encoding="utf-8"))
"""What models are told."""
SNIPPET = 300
"""Characters of a result of the search; documents gives the whole text."""
STOP = """a an and are at by did do does for from had has have how in is it its of on or that the their they this to was
what when where which who whom whose with"""
"""Words that are not looked for."""
_STOP = frozenset(STOP.split())


def words(text: str) -> list[str]:
    """Lower-case words without the commonest ones; a plural s is cut off."""
    words = (w for w in re.findall(r"[a-z0-9]+", text.lower()) if w not in _STOP)
    return [w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in words]


@cache
def load_corpus(path: Path) -> dict[str, str]:
    """Title -> text."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return {str(row["title"]): str(row["text"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"the documents in '{path}' cannot be read: {type(error).__name__}: {error}",
            fix='one {"title": ..., "text": ...} a line',
        ) from error


class Search:
    """Ranks documents by BM25 (Robertson and Zaragoza 2009, k1 1.2, b 0.75); words of the title count three times."""

    def __init__(self, corpus: dict[str, str], limit: int = 3) -> None:
        self.corpus, self.limit = corpus, limit
        self._counts = {title: Counter(words(title) * 3 + words(text)) for title, text in corpus.items()}
        lengths = [sum(c.values()) for c in self._counts.values()]
        self._mean = sum(lengths) / max(len(lengths), 1)
        holders = Counter(w for c in self._counts.values() for w in c)
        n = len(corpus)
        self._weight = {w: math.log(1 + (n - k + 0.5) / (k + 0.5)) for w, k in holders.items()}

    def call(self, query: str) -> str:
        scores = {title: self._score(counts, words(query)) for title, counts in self._counts.items()}
        best = sorted((t for t, s in scores.items() if s > 0), key=lambda t: (-scores[t], t))[: self.limit]
        if not best:
            return "No results."
        return "\n".join(f"[{i}] {t}: {shortened(self.corpus[t])}" for i, t in enumerate(best, start=1))

    def _score(self, counts: Counter[str], query: list[str]) -> float:
        norm = 1.2 * (0.25 + 0.75 * sum(counts.values()) / self._mean)
        return sum(self._weight.get(w, 0.0) * 2.2 * counts[w] / (counts[w] + norm) for w in set(query) if counts[w])


def shortened(text: str) -> str:
    return text if len(text) <= SNIPPET else f"{text[:SNIPPET]}..."


class Documents:
    def __init__(self, corpus: dict[str, str]) -> None:
        self.corpus = {title.lower(): text for title, text in corpus.items()}

    def call(self, title: str) -> str:
        text = self.corpus.get(title.strip().lower())
        if text is None:
            raise ToolError(f"there is no document '{title}'")
        return text


class Files:
    """Reads text files below one folder; nothing outside of it is read, whatever the path or its links say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def call(self, path: str) -> str:
        """The text of a file; of a folder the names in it."""
        target = (self.folder / path.strip().lstrip("/")).resolve()
        if not target.is_relative_to(self.folder) or not target.exists():
            raise ToolError(f"there is no file '{path}'")
        if target.is_dir():
            return "\n".join(sorted(p.name + "/" * p.is_dir() for p in target.iterdir()))
        try:
            return target.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ToolError(f"'{path}' is not text") from error
