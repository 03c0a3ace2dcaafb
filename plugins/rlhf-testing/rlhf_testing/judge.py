"""Conformance of judges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.rewards import JudgeReply, JudgeRequest
from rlhf_testing.config import built, check_config
from rlhf_testing.report import left_alone, require
from rlhf_testing.samples import make_context

ODD_TEXTS = ("Is 2 + 2 four? Answer yes or no.", "", "\x00\ud83d\ude00", "word " * 2000)


def check_judge(
    config: ComponentConfig, ctx: BuildContext | None = None, *, requests: Sequence[JudgeRequest] | None = None
) -> None:
    """Check a judge: one ``JudgeReply`` per request, in order; the same answer whatever else is in the call; nothing
    that a policy writes makes it raise; an empty call is fine.

    Args:
        requests: what to ask, at temperature 0; None takes a plain question and odd texts.
    """
    check_config(config, "judge")
    judge: Any = built(config, "judge", ctx or make_context())
    ask = left_alone(config, judge.ask, "ask()", "requests")
    tried = list(
        requests
        or [
            JudgeRequest(f"odd/{i}", ({"role": "user", "content": text},), max_tokens=8)
            for i, text in enumerate(ODD_TEXTS)
        ]
    )
    try:
        require(list(ask([])) == [], config, "an empty call gets an empty answer", "something else came")
        try:
            replies = list(ask(tried))
        except AssertionError:
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise AssertionError(
                f"{type(config).__name__} ('{config.name}'): ask() answers with a status\n"
                f"  seen: {problem}\n  fix: never raise"
            ) from error
        require(len(replies) == len(tried), config, "one reply per request", f"{len(replies)} for {len(tried)}")
        require(all(isinstance(r, JudgeReply) for r in replies), config, "replies are JudgeReply", repr(replies[:1]))
        for request, reply in zip(tried, replies):
            alone = ask([request])[0]
            rule = "an answer does not depend on the other requests"
            seen = f"{request.id}: {reply} with, {alone} without"
            require((alone.text, alone.status) == (reply.text, reply.status), config, rule, seen)
    finally:
        close = getattr(judge, "close", None)
        if callable(close):
            close()
            close()  # idempotent
