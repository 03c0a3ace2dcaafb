"""One HTML file from what was read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from rlhf_plugin_report.charts import COLOURS, DASHES, draw, library
from rlhf_plugin_report.fit import LEAST_DATA, MOST_BYTES, fitted
from rlhf_plugin_report.media import unembedded
from rlhf_plugin_report.pack import in_script, zipped
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
"""Of the page, in this order."""
OPEN = ("Reward", "Scores and lengths", "Held out", "Loss and gradient")
"""Groups of charts that begin unfolded."""

CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200b\\u202a-\\u202e\\u2066-\\u2069\\ufeff]")


def render(page: PageView) -> str:
    """The page: scripts, style and data inside, nothing fetched.

    Every text of the run is escaped: in HTML by the template; data are base64.
    """
    charts = draw(page.runs)
    items = {chart.place: chart.item for _, of_group in charts for chart in of_group}
    beside = {
        "charts": {"colours": COLOURS, "dashes": DASHES, "items": items},
        "sources": {run.name: run.sources for run in page.runs},
        "files": {run.name: run.files for run in page.runs},
        "pairs": [{**pair, "run": run.name} for run in page.runs for pair in run.pairs],
    }
    around: dict[str, Any] = {
        "charts": charts,
        "open": OPEN,
        "colours": COLOURS,
        "library": in_script(zipped(library().encode())) if charts else "",
        "style": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in SCRIPTS),
        **_kinds(page.runs),
    }
    room = max(LEAST_DATA, MOST_BYTES - len(_filled(page, data="", **around).encode("utf-8", "replace")))
    unembedded([file for run in page.runs for file in run.files.values()], room * 3 // 8)
    runs, data = fitted(page.runs, room * 3 // 4, beside)
    whole = _filled(replace(page, runs=runs), data=in_script(data), **{**around, **_kinds(runs)})
    return whole.encode("utf-8", "replace").decode()  # half of a surrogate pair, which JSON may hold, is no text


def _kinds(runs: Sequence[RunView]) -> dict[str, Any]:
    rollouts = [row for run in runs for row in run.rollouts]
    return {
        "per_token": any("ids" in row for row in rollouts),
        "examples": any("example" in row for row in rollouts),
        "count": len(rollouts),
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
    """A run's text in which characters show that control terminals or reverse what stands behind them.

    The same as ``visible`` of tools.js. Example: ``"\\x1b[31m"`` is ``"␛[31m"``.
    """
    from markupsafe import Markup

    return CONTROL.sub(_name, value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _name(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def _asset(name: str) -> str:
    return (files("rlhf_plugin_report") / "templates" / name).read_text(encoding="utf-8")
