"""One HTML file from what was read."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from rlhf_plugin_report.charts import axes, draw, library
from rlhf_plugin_report.completions import TOKENS
from rlhf_plugin_report.media import unembedded
from rlhf_plugin_report.pack import in_script, packed, zipped
from rlhf_plugin_report.read import PageView, RunView

SCRIPTS = (
    "tools.js",
    "unpack.js",
    "charts.js",
    "turns.js",
    "tokens.js",
    "sound.js",
    "rollouts.js",
    "listen.js",
    "sounds.js",
    "page.js",
)
TEXT = frozenset("\n\t\u200c\u200d\u00ad")
ACTING = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Unicode's categories of characters that are shown by name, but for those of TEXT."""


def render(page: PageView) -> str:
    """The page with scripts, style and data inside; texts of the run are escaped, data are base64."""
    charts = draw(page.runs)
    items = {chart.place: chart.item for _, of_group in charts for chart in of_group}
    heldout = [{**row, "run": run.name} for run in page.runs for row in run.heldout]
    beside = {
        "heldout": evenly(heldout, min(1.0, MOST_HELDOUT / max(len(heldout), 1))),
        "charts": {"axes": [axes(run) for run in page.runs], "items": items},
        "sources": {run.name: run.sources for run in page.runs},
        "files": {run.name: run.files for run in page.runs},
        "pairs": [{**pair, "run": run.name} for run in page.runs for pair in run.pairs],
    }
    around: dict[str, Any] = {
        "charts": charts,
        "library": in_script(zipped(library().encode())) if charts else "",
        "style": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in SCRIPTS),
        **_kinds(page.runs),
    }
    room = max(LEAST_DATA, MOST_BYTES - len(_filled(page, data="", **around).encode("utf-8", "replace")))
    unembedded([file for run in page.runs for file in run.files.values()], room * 3 // 8)
    runs, data = fitted(page.runs, room * 3 // 4, beside)
    page_html = _filled(replace(page, runs=runs), data=in_script(data), **{**around, **_kinds(runs)})
    return page_html.encode("utf-8", "replace").decode()  # half of a surrogate pair, which JSON may hold, is no text


def _kinds(runs: Sequence[RunView]) -> dict[str, Any]:
    rollouts = [row for run in runs for row in run.rollouts]
    return {
        "per_token": any("ids" in row for row in rollouts),
        "examples": any("example" in row for row in rollouts),
        "count": len(rollouts),
        "heldout": any(run.heldout for run in runs),
        "sounds": any(run.pairs for run in runs),
    }


def _filled(page: PageView, **values: Any) -> str:
    from jinja2 import Environment, PackageLoader, select_autoescape

    environment = Environment(
        loader=PackageLoader("rlhf_plugin_report"),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        finalize=visible,
    )
    return environment.get_template("page.html").render(page=page, **values)


def visible(value: Any) -> Any:
    r"""A run's text in which characters show that control terminals (``"\x1b[31m"`` is ``"␛[31m"``), as in tools.js."""
    from markupsafe import Markup

    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(c if c in TEXT or unicodedata.category(c) not in ACTING else _name(ord(c)) for c in value)


def _name(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def _asset(name: str) -> str:
    return (files("rlhf_plugin_report") / "templates" / name).read_text(encoding="utf-8")


MOST_BYTES = 7_600_000
"""Of a whole page, so that it opens at once and can be sent."""
LEAST_DATA = 1_000_000
"""Bytes for the data also where the rest of the page is large."""
MOST_HELDOUT = 1000
"""Completions of held-out prompts on a page, evenly over the evaluations."""
CLOSE = 0.97
"""Of a share that was computed from sizes, so that one attempt does."""
ATTEMPTS = 6


def fitted(runs: Sequence[RunView], room: int, beside: Mapping[str, Any]) -> tuple[Sequence[RunView], bytes]:
    """Data of about ``room`` bytes and notes on what was left out: first tokens' numbers, then completions."""

    def packed_rows(shown: Sequence[RunView]) -> bytes:
        return packed([{**row, "run": run.name} for run in shown for row in run.rollouts], **beside)

    data = packed_rows(runs)
    if len(data) <= room:
        return runs, data
    bare = packed_rows([_thinned_tokens(run, 0.0) for run in runs])
    if len(bare) <= room:
        share = CLOSE * (room - len(bare)) / (len(data) - len(bare))
        return _until_it_fits(runs, room, share, _thinned_tokens, packed_rows)
    runs = [_thinned_tokens(run, 0.0) for run in runs]
    return _until_it_fits(runs, room, CLOSE * room / len(bare), _thinned_completions, packed_rows)


def _until_it_fits(
    runs: Sequence[RunView],
    room: int,
    share: float,
    thinned: Callable[[RunView, float], RunView],
    packed_rows: Callable[[Sequence[RunView]], bytes],
) -> tuple[Sequence[RunView], bytes]:
    shown, data = runs, b""
    for _ in range(ATTEMPTS):
        shown = [thinned(run, share) for run in runs]
        data = packed_rows(shown)
        if len(data) <= room:
            break
        share *= CLOSE * room / len(data)
    return shown, data


def _thinned_tokens(run: RunView, share: float) -> RunView:
    """Numbers of tokens of that share of the completions that have some; the others keep text, score and parts."""
    places = [n for n, row in enumerate(run.rollouts) if "ids" in row]
    if not places:
        return run
    kept = evenly(places, share)
    dropped = set(places).difference(kept)
    rows = [
        {key: value for key, value in row.items() if key not in TOKENS} if n in dropped else row
        for n, row in enumerate(run.rollouts)
    ]
    note = (
        f"token by token are {len(kept)} of the {len(places)} completions whose tokens the trace kept, evenly over the "
        f"trace: with all, this page would be larger than {MOST_BYTES / 1e6:g} MB. All are in trace.jsonl (rlhf "
        "trace show RUN --step N)"
    )
    return replace(run, rollouts=rows, notes=[*run.notes, note])


def _thinned_completions(run: RunView, share: float) -> RunView:
    rows = run.rollouts
    kept = evenly(rows, share)
    if len(kept) == len(rows):
        return run
    note = (
        f"{len(kept)} of {len(rows)} completions are on this page, evenly over the trace: with all, it would be larger "
        f"than {MOST_BYTES / 1e6:g} MB. All are in trace.jsonl and plays.jsonl"
    )
    return replace(run, rollouts=kept, notes=[*run.notes, note])


def evenly(rows: Sequence[Any], share: float) -> Sequence[Any]:
    """A share of them, in their order and at the same distance from each other."""
    count = min(len(rows), math.floor(share * len(rows)))
    return rows if count == len(rows) else [rows[i * len(rows) // count] for i in range(count)]
