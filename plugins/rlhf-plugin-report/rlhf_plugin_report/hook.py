"""The page at the end of every run, however it ended. ``RLHF_REPORT=0`` in the environment switches it off."""

from __future__ import annotations

import logging
import os

from rlhf_core.hooks import RunEnd, hookimpl

VARIABLE = "RLHF_REPORT"
OFF = ("0", "off", "no", "false")
log = logging.getLogger("rlhf.report")


class Page:
    @hookimpl
    def rlhf_run_closed(self, event: RunEnd) -> str | None:
        """The line that says where the page is, or why there is none; the run is what it was either way."""
        if os.environ.get(VARIABLE, "").strip().lower() in OFF:
            return None
        try:
            from rlhf_plugin_report.at_end import write_page

            return f"page:    {write_page(event)}"
        except Exception as error:  # whatever it is, the run is over and has all its files
            log.debug("the page", exc_info=error)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            return f"page:    not written ({reason}); try: rlhf report {event.run_dir}"


page = Page()
