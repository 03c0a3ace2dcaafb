"""The page of a run that has just ended."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.data import write_text
from rlhf_core.hooks import RunEnd
from rlhf_plugin_report.page import render
from rlhf_plugin_report.read import LIMIT, read_page
from rlhf_plugin_report.stored import open_run, with_error

NAME = "report.html"


def write_page(event: RunEnd) -> Path:
    """Write it into the run's folder and return its place."""
    run = with_error(open_run(str(event.run_dir)), event.status, event.error)
    page = event.run_dir / NAME
    write_text(page, render(read_page([run], LIMIT)))
    return page
