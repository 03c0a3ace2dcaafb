"""Images, sounds and videos of a completion, for a page that opens without its folder."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_OF_ONE = 500_000
"""Bytes of a file that becomes part of the page; a larger one is linked."""
MOST = 2_000_000
"""Of all of them together."""
KINDS = ("image", "audio", "video")


class MediaReader:
    """Makes what the page shows of a reference in the trace.

    A file whose name is not that of an image, sound or video is never read, whatever the run says of it.

    Args:
        run: the run's folder; a relative path is looked for there, then in the current folder.
    """

    def __init__(self, run: Path) -> None:
        self.run, self.left = run, MOST
        self._known: dict[str, dict[str, str]] = {}

    def __call__(self, media: Any) -> dict[str, str]:
        """``kind``, ``path`` and, where there is a file to show, ``url``: its content, or its place if it is large.

        Args:
            media: ``kind``, ``path``, ``sha256`` and ``mime``, as in the trace.
        """
        facts = media if isinstance(media, Mapping) else {}
        kind, path = str(facts.get("kind", "")), str(facts.get("path", ""))
        if path not in self._known:
            shown = {"kind": kind if kind in KINDS else "", "path": path or str(facts.get("sha256", ""))}
            self._known[path] = {**shown, **self._url(path)}
        return self._known[path]

    def _url(self, path: str) -> dict[str, str]:
        mime = mimetypes.guess_type(path)[0] or ""
        if mime.partition("/")[0] not in KINDS:
            return {}
        kept = self.run / "audio" / Path(path).name  # what a speech run keeps of its rollouts' sounds
        file = next((p for p in (self.run / path, kept, Path(path).expanduser()) if p.is_file()), None)
        if file is None:
            return {"missing": "yes"}
        size = file.stat().st_size
        if size > min(MOST_OF_ONE, self.left):
            return {"url": file.resolve().as_uri()}
        self.left -= size
        return {"url": f"data:{mime};base64,{base64.b64encode(file.read_bytes()).decode()}"}
