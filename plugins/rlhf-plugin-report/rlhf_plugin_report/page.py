"""One HTML file from what was read."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from rlhf_plugin_report.charts import COLOURS, DASHES, draw, library
from rlhf_plugin_report.pack import packed
from rlhf_plugin_report.read import PageView

SCRIPTS = ("tools.js", "charts.js", "tokens.js", "rollouts.js", "page.js")
"""Of the page, in this order."""
OPEN = ("Reward", "Scores and lengths", "Held out", "Loss and gradient")
"""Groups of charts that begin unfolded."""


def render(page: PageView) -> str:
    """The page: scripts, style and data inside, nothing fetched.

    Every text of the run is escaped: in HTML by the template, in data by never closing its script.
    """
    from jinja2 import Environment, PackageLoader, select_autoescape

    environment = Environment(
        loader=PackageLoader("rlhf_plugin_report"), autoescape=select_autoescape(["html"]), trim_blocks=True
    )
    charts = draw(page.runs)
    rollouts = [{**row, "run": run.name} for run in page.runs for row in run.rollouts]
    per_token = any("pieces" in row for row in rollouts)
    items = {chart.place: chart.item for _, of_group in charts for chart in of_group}
    return environment.get_template("page.html").render(
        page=page,
        charts=charts,
        open=OPEN,
        colours=COLOURS,
        library=library() if charts else "",
        items=_inside_script({"colours": COLOURS, "dashes": DASHES, "items": items}),
        style=_asset("page.css"),
        script="\n".join(_asset(name) for name in SCRIPTS),
        data=_inside_script({**packed(rollouts), "sources": {run.name: run.sources for run in page.runs}}),
        per_token=per_token,
        examples=any("example" in row for row in rollouts),
        count=len(rollouts),
    )


def _asset(name: str) -> str:
    return (files("rlhf_plugin_report") / "templates" / name).read_text(encoding="utf-8")


def _inside_script(value: Any) -> str:
    """JSON that can stand in a script element, whatever its texts hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
