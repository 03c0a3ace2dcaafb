"""Links of a built site that lead nowhere: `python -m scripts.site.links build/site`."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Anchors and links of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what can be linked to, and what is linked or loaded."""
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.add(value)


def broken_links(site: Path) -> list[str]:
    """Page and address of each link inside of the site without a file or an anchor there.

    Example: ``["tutorial.html: data.html#no-such-heading"]``
    """
    pages = {file.resolve(): Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    broken: list[str] = []
    for file, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchors = pages[target].anchors if target in pages else {unquote(parts.fragment)}
            if not (parts.scheme or parts.netloc) and not (
                target.is_file() and (not parts.fragment or unquote(parts.fragment) in anchors)
            ):
                broken.append(f"{file.relative_to(site.resolve())}: {link}")
    return broken


if __name__ == "__main__":
    rows = broken_links(Path(sys.argv[1]))
    print("\n".join(rows) or "every link leads somewhere")
    raise SystemExit(bool(rows))
