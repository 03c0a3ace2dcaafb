"""Images, sounds and videos of completions, for a page that opens without its folder."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_OF_ONE = 500_000
"""Bytes of a file that becomes part of the page; a larger one is linked."""
MOST = 2_500_000
"""Of all of them together, over all runs of a page."""
KINDS = ("image", "audio", "video")


class MediaReader:
    """Makes what the page shows of media files, each once; only names of images, sounds and videos are read."""

    def __init__(self, run: Path, most: int = MOST) -> None:
        self.run, self.left = run, most
        self.files: dict[str, dict[str, str]] = {}
        """Path in the run's files -> ``url``, its content or its place if there is no room, and ``file``."""

    def __call__(self, media: Any) -> dict[str, str]:
        """``kind`` and ``path`` and, where there is no file, ``missing``; what it holds is in :attr:`files`."""
        facts = media if isinstance(media, Mapping) else {}
        kind, path = str(facts.get("kind", "")), str(facts.get("path", ""))
        if path not in self.files:
            self.files[path] = self._read(path)
        shown = {"kind": kind if kind in KINDS else "", "path": path or str(facts.get("sha256", ""))}
        return {**shown, **({"missing": "yes"} if "missing" in self.files[path] else {})}

    def fill(self, groups: Sequence[Sequence[Any]]) -> None:
        """Take the files of as many of these groups of references as there is room for, evenly over all groups."""
        sizes = [sum(self._size(one) for one in group) for group in groups]
        with_media = [n for n, size in enumerate(sizes) if size]
        total = sum(sizes)
        count = len(with_media) if total <= self.left else len(with_media) * self.left // total
        for n in range(count):
            for one in groups[with_media[n * len(with_media) // count]]:
                self(one)

    @property
    def linked(self) -> int:
        """How many files are linked, since there was no room."""
        return sum(one.get("url", "").startswith("file:") for one in self.files.values())

    def _size(self, media: Any) -> int:
        path = str(media.get("path", "")) if isinstance(media, Mapping) else ""
        file = None if path in self.files else media_file(self.run, path)
        size = file.stat().st_size if file else 0
        return size if size <= MOST_OF_ONE else 0

    def _read(self, path: str) -> dict[str, str]:
        mime = mimetypes.guess_type(path)[0] or ""
        if mime.partition("/")[0] not in KINDS:
            return {}
        file = media_file(self.run, path)
        if file is None:
            return {"missing": "yes"}
        size = file.stat().st_size
        if size > min(MOST_OF_ONE, self.left):
            return {"url": file.resolve().as_uri(), "file": str(file.resolve())}
        self.left -= size
        content = base64.b64encode(file.read_bytes()).decode()
        return {"url": f"data:{mime};base64,{content}", "file": str(file.resolve())}


def media_file(run: Path, path: str) -> Path | None:
    """Where a file that a run's files name is now: in the run, in its ``audio/`` (which keeps a choice), or there."""
    if not path:
        return None
    candidates = (run / path, run / "audio" / Path(path).name, Path(path).expanduser())
    try:
        return next((file for file in candidates if file.is_file()), None)
    except (OSError, ValueError):  # a name that is too long, or holds a zero byte
        return None


def unembedded(files: Iterable[dict[str, str]], room: int) -> None:
    """Link the last of these files until the others take at most ``room`` bytes."""
    used = 0
    for one in files:
        if one.get("url", "").startswith("data:"):
            used += len(one["url"]) * 3 // 4
            if used > room:
                one["url"] = Path(one["file"]).as_uri()
