"""What the dashboard answers, by path: the page and its scripts, the list of runs, one run's news, the full report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

from rlhf_core.config import RlhfError
from rlhf_plugin_dashboard.curves import RunData
from rlhf_plugin_dashboard.head import HeadReader, run_folders
from rlhf_plugin_report.words import group_of, words_of

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Scripts are the dashboard's own files; bokeh sets styles on elements."""
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The report holds its scripts inside; sandboxed, it cannot reach the dashboard whatever its texts do."""
RESCAN_S = 2.0
MOST_OF_REPORT = 6
ROLLOUTS = 2000
"""Most completions of each run on it."""
ASSETS = {"": "dashboard.html", **{name: name for name in ("dashboard.css", "dashboard.js", "curves.js", "lists.js")}}
BOKEH = ("bokeh.min.js", "bokeh-api.min.js")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}

Query = Mapping[str, list[str]]


@dataclass(frozen=True)
class Answer:
    body: bytes
    kind: str
    status: int = 200
    policy: str = POLICY
    keep: bool = False
    """Whether the browser may keep it: files of the distribution."""


def text(message: str, status: int) -> Answer:
    return Answer(f"{message}\n".encode(), "text/plain", status)


@dataclass
class Site:
    """The dashboard over one folder of runs. Reads only; safe to ask from several threads."""

    root: Path
    command = "rlhf dashboard"
    _heads: dict[str, HeadReader] = field(default_factory=dict)
    _data: dict[str, RunData] = field(default_factory=dict)
    _scanned: float = float("-inf")
    _lock: Lock = field(default_factory=Lock)

    def answer(self, path: str, query: Query) -> Answer:
        pages: Mapping[str, Callable[[Query], Answer]] = {
            "api/runs": self._runs,
            "api/run": self._run,
            "report": self._report,
        }
        if path in pages:
            return pages[path](query)
        if path in ASSETS or path in BOKEH:
            return _asset(path)
        return text(f"there is no '{path}' here", 404)

    def names(self) -> list[str]:
        """Runs under the folder, newly looked for if that is some seconds ago."""
        with self._lock:
            if time.monotonic() - self._scanned > RESCAN_S:
                self._scanned = time.monotonic()
                there = {self._name(path): path for path in run_folders(self.root)}
                self._heads = {n: self._heads.get(n) or HeadReader(p, n) for n, p in there.items()}
                self._data = {n: data for n, data in self._data.items() if n in there}
            return list(self._heads)

    def _name(self, path: Path) -> str:
        return self.root.resolve().name if path == self.root else path.relative_to(self.root).as_posix()

    def _runs(self, query: Query) -> Answer:
        names, now = self.names(), time.time()
        with self._lock:
            heads = [self._heads[name].read() for name in names if name in self._heads]
        heads.sort(key=lambda head: (-(head.written or 0), head.name))
        return _json({"root": str(self.root), "runs": [head.to_json(now) for head in heads]})

    def _run(self, query: Query) -> Answer:
        name = query.get("name", [""])[0]
        if name not in self.names():
            return _json({"error": f"there is no run '{name}'"}, 404)
        with self._lock:
            data = self._data.setdefault(name, RunData(self._heads[name].path))
        try:
            news = data.since(query.get("metrics", [""])[0], query.get("rollouts", [""])[0])
        except OSError as error:
            return _json({"error": f"'{name}' cannot be read: {error.strerror}"}, 409)
        groups = {metric: group_of(metric) for metric in news["metrics"]["curves"]}
        news["groups"] = {metric: f"{group.rank:02d} {group.title}" for metric, group in groups.items()}
        news["words"] = {metric: words_of(metric) for metric in groups}
        return _json(news)

    def _report(self, query: Query) -> Answer:
        from rlhf_plugin_report.page import render
        from rlhf_plugin_report.read import read_page
        from rlhf_plugin_report.stored import open_run

        names = set(self.names())
        wanted = [name for name in query.get("run", []) if name in names][:MOST_OF_REPORT]
        if not wanted:
            return text("no run of this dashboard was named", 404)
        try:
            runs = [open_run(str(self._heads[name].path)) for name in wanted]
            page = render(read_page(runs, ROLLOUTS))
        except RlhfError as error:
            return text(str(error), 409)
        return Answer(page.encode(), "text/html", policy=REPORT_POLICY)


@cache
def _asset(name: str) -> Answer:
    if name in BOKEH:
        from rlhf_plugin_report.charts import bokeh_file

        body = bokeh_file(name).read_bytes()
    else:
        body = (files("rlhf_plugin_dashboard") / "templates" / ASSETS[name]).read_bytes()
    return Answer(body, TYPES[Path(ASSETS.get(name, name)).suffix], keep=name in BOKEH)


def _json(value: Any, status: int = 200) -> Answer:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Answer(text.encode("utf-8", "replace"), TYPES[".json"], status)
