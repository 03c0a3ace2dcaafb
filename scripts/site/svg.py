"""Parts of the documentation's pictures: SVG that follows the reader's light or dark mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """<style>
 text{font:14px system-ui,sans-serif;fill:#1f2328}
 .m{font-family:ui-monospace,monospace;font-size:13px} .s{font-size:12px;fill:#59636e}
 .b{fill:#f6f8fa;stroke:#59636e} .p{fill:#dbeafe;stroke:#1d4ed8}
 .g{fill:#dcfce7;stroke:#15803d} .r{fill:#fee2e2;stroke:#b91c1c}
 .l{stroke:#59636e;fill:none;stroke-width:1.5} .h{fill:#59636e} .lp{stroke:#1d4ed8;fill:none;stroke-width:2.5}
 .lg{stroke:#15803d;fill:none;stroke-width:2.5} .lr{stroke:#b91c1c;fill:none;stroke-width:2.5;stroke-dasharray:7 4}
 @media (prefers-color-scheme: dark){ text{fill:#e6edf3} .s{fill:#9da7b1} .b{fill:#21262d;stroke:#9da7b1}
 .p{fill:#172554;stroke:#93c5fd} .g{fill:#052e16;stroke:#86efac} .r{fill:#450a0a;stroke:#fca5a5}
 .l{stroke:#9da7b1} .h{fill:#9da7b1}
 .lp{stroke:#93c5fd} .lg{stroke:#86efac} .lr{stroke:#fca5a5} }
</style>
<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">
<path class="h" d="M0 0L8 4L0 8z"/></marker></defs>"""


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A whole file; ``title`` is what a screen reader says."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    return f"{head}\n<title>{escape(title)}</title>\n{STYLE}\n" + "\n".join(parts) + "\n</svg>\n"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """One line of text; ``y`` is its baseline."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, lines: Sequence[str], kind: str = "b") -> str:
    """A rectangle with centred lines; all but the first are small."""
    top = y + height / 2 - 8 * (len(lines) - 1) + 5
    rows = [text(x + width / 2, top + 17 * i, line, "s" if i else "") for i, line in enumerate(lines)]
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>'
    return "\n".join([shape, *rows])


def arrow(*points: tuple[float, float]) -> str:
    """A polyline that ends in an arrow."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline class="l" points="{path}" marker-end="url(#a)"/>'


def line(points: Iterable[tuple[float, float]], kind: str = "l") -> str:
    """A polyline."""
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def axes(x: float, y: float, width: float, height: float, below: str, beside: str) -> str:
    """Two axes with names; ``(x, y)`` is their lower left corner."""
    return "\n".join(
        [
            line([(x, y - height), (x, y), (x + width, y)]),
            text(x + width / 2, y + 34, below, "s"),
            text(x, y - height - 8, beside, "s", "start"),
        ]
    )
