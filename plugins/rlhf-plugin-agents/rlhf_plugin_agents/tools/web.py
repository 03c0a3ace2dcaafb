"""A search of the web through the interface of Brave, Tavily or Serper."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from rlhf_core.rollouts import ToolError
from rlhf_plugin_agents.backends.base import BackendFault

URLS = {
    "brave": "https://api.search.brave.com/res/v1/web/search",
    "tavily": "https://api.tavily.com/search",
    "serper": "https://google.serper.dev/search",
}

ENDS = (401, 402, 403, 429)
"""Answers that no agent can do anything about: its task has no score then."""
WAITS_S = (1.0, 2.0, 4.0)
"""Seconds before a request is made again that was one too many."""


class SearchEnds(ToolError, BackendFault):
    """The key is refused, or nothing is left of the quota."""


class WebSearch:
    """Asks ``brave``, ``tavily`` or ``serper``; the key is never in an error's text."""

    def __init__(self, service: str, key: str, results: int, timeout_s: float, url: str | None = None) -> None:
        self.service, self._key, self.results, self.timeout_s = service, key, results, timeout_s
        self.url = url or URLS[service]

    def call(self, query: str) -> str:
        try:
            pages = self._pages(self._response(query))
        except HTTPError as error:
            if error.code in ENDS:
                raise SearchEnds(
                    f"the search by {self.service} answered {error.code} {error.reason}: see to its key and its quota"
                ) from error
            raise ToolError(f"the search answered {error.code} {error.reason}") from error
        except (URLError, TimeoutError, ValueError, KeyError, TypeError) as error:
            raise ToolError(f"the search gave no answer: {type(error).__name__}") from error
        lines = [f"[{i}] {p['title']} ({p['url']}): {p['text']}" for i, p in enumerate(pages, start=1)]
        return "\n".join(lines) or "No results."

    def _response(self, query: str) -> Any:
        for wait_s in (*WAITS_S, None):
            try:
                with urlopen(self._request(query), timeout=self.timeout_s) as answer:
                    return json.load(answer)
            except HTTPError as error:
                if error.code != 429 or wait_s is None:
                    raise
            time.sleep(wait_s)
        return None

    def _request(self, query: str) -> Request:
        if self.service == "brave":
            words = urlencode({"q": query, "count": self.results})
            return Request(f"{self.url}?{words}", headers={"X-Subscription-Token": self._key})
        if self.service == "serper":
            body, key = {"q": query, "num": self.results}, {"X-API-KEY": self._key}
        else:
            body, key = {"query": query, "max_results": self.results}, {"Authorization": f"Bearer {self._key}"}
        return Request(self.url, json.dumps(body).encode(), {**key, "Content-Type": "application/json"})

    def _pages(self, answer: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
        if self.service == "brave":
            pages, url, text = answer.get("web", {}).get("results", []), "url", "description"
        elif self.service == "serper":
            pages, url, text = answer.get("organic", []), "link", "snippet"
        else:
            pages, url, text = answer["results"], "url", "content"
        return [{"title": p["title"], "url": p[url], "text": p.get(text, "")} for p in pages[: self.results]]
