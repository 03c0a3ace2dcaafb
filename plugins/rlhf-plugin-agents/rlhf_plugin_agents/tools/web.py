"""A search of the web through Brave's or Tavily's interface."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from rlhf_core.api import ToolError

URLS = {"brave": "https://api.search.brave.com/res/v1/web/search", "tavily": "https://api.tavily.com/search"}


class WebSearch:
    """Asks a service.

    Args:
        service: ``brave`` or ``tavily``.
        key: for it; never in an error's text.
        results: pages of an answer.
        timeout_s: seconds that an answer may take.
        url: another address of the same interface.
    """

    def __init__(self, service: str, key: str, results: int, timeout_s: float, url: str | None = None) -> None:
        self.service, self._key, self.results, self.timeout_s = service, key, results, timeout_s
        self.url = url or URLS[service]

    def call(self, query: str) -> str:
        """The best pages, one a paragraph.

        Raises:
            ToolError: the service failed or gave no answer in time.
        """
        try:
            with urlopen(self._request(query), timeout=self.timeout_s) as answer:
                pages = self._pages(json.load(answer))
        except HTTPError as error:
            raise ToolError(f"the search answered {error.code} {error.reason}") from error
        except (URLError, TimeoutError, ValueError, KeyError, TypeError) as error:
            raise ToolError(f"the search gave no answer: {type(error).__name__}") from error
        lines = [f"[{i}] {p['title']} ({p['url']}): {p['text']}" for i, p in enumerate(pages, start=1)]
        return "\n".join(lines) or "No results."

    def _request(self, query: str) -> Request:
        if self.service == "brave":
            words = urlencode({"q": query, "count": self.results})
            return Request(f"{self.url}?{words}", headers={"X-Subscription-Token": self._key})
        body = json.dumps({"query": query, "max_results": self.results}).encode()
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        return Request(self.url, body, headers)

    def _pages(self, answer: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
        if self.service == "brave":
            found, text = answer.get("web", {}).get("results", []), "description"
        else:
            found, text = answer["results"], "content"
        return [{"title": p["title"], "url": p["url"], "text": p.get(text, "")} for p in found[: self.results]]
