"""When an attempt is made again, and whether it may have cost something; both services' clients name errors alike."""

from __future__ import annotations

import random as random_module
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

GAVE_UP = "given up after {} attempts; last: {}"


def worth_retrying(error: Exception) -> bool:
    """408, 409, 429, 5xx, broken connections, timeouts, and answers that cannot be read; not what stays refused."""
    if is_a(error, "APIStatusError"):
        status = int(getattr(error, "status_code", 0))
        return (status in (408, 409, 429) or status >= 500) and getattr(error, "code", None) != "insufficient_quota"
    broken = is_a(error, "APIConnectionError") or is_a(error, "APIResponseValidationError")
    return broken or isinstance(error, (TimeoutError, ValueError))


def may_have_been_sent(error: Exception) -> bool:
    """Whether an attempt that failed may be billed: not what the service refused, nor what never reached it."""
    if is_a(error, "APIStatusError"):
        return False
    cause = type(error.__cause__).__name__
    return not (is_a(error, "APIConnectionError") and cause in ("ConnectError", "ConnectTimeout"))


def is_a(error: Exception, name: str) -> bool:
    """Whether an error is of the client library's class of that name."""
    return any(c.__name__ == name for c in type(error).__mro__)


def timed_out(error: Exception) -> bool:
    return isinstance(error, TimeoutError) or is_a(error, "APITimeoutError")


def retry_after(error: Exception) -> float | None:
    """Seconds that the service asks to be left alone (``retry-after-ms``, or ``retry-after``), or None."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        if (seconds := headers.get("retry-after")) is None:
            return None
        return max(0.0, float(seconds))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - time())
    except (ValueError, KeyError):
        return None


def wait_before(attempt: int, first_s: float, most_s: float, random: Any = random_module) -> float:
    """Seconds before the next attempt: doubled with each failed one, half of it drawn at random."""
    longest = min(most_s, first_s * 2.0**attempt)
    return longest * (0.5 + 0.5 * random.random())
