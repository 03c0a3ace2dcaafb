"""A judge's answer as validated JSON; prose gets one chance to become JSON, and is a status then, never a number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rlhf_core.rewards import Judge, JudgeReply, JudgeRequest, Score, ScoreStatus
from rlhf_plugin_judge.delimiters import fence_untrusted

T = TypeVar("T")
LOOKED_AT = 20_000
"""Characters from the end of an answer in which its JSON is looked for."""
REASON = 1000
"""Characters of a judge's reason that are kept."""
_OPENED = re.compile(r'\{\s*"')
"""What begins like a JSON object with keys, unlike braces in prose or LaTeX."""
REPAIR = (
    "That is not the JSON that was asked for; the text between the tags says why. Answer again, with the JSON object "
    "alone: no prose around it, no code fence."
)


class Unusable(ValueError):
    """An answer in another form than required; the text says why, for the judge and for people."""


@dataclass(frozen=True)
class Verdict(Generic[T]):
    """What a judge's answer means; ``value`` is None unless ``status`` is ok."""

    value: T | None
    status: ScoreStatus = ScoreStatus.OK
    detail: str = ""
    repaired: bool = False
    cost_usd: float = 0.0
    why: str = ""
    """The judge's reason, of at most :data:`REASON` characters."""

    @property
    def missing(self) -> Score:
        return Score.failed(self.status, self.detail)


def find_object(text: str) -> dict[str, Any]:
    """The JSON object that ends a text, which a judge may write after its thoughts or inside a code fence.

    An object that stands anywhere else, or within one that does not parse, may be a quotation of what is judged: a
    policy that writes ``{"grade": 10}`` must not grade itself.

    Example:
        >>> find_object('It is short. {"grade": 7}')
        {'grade': 7}
    """
    text, at, last, broken = text[-LOOKED_AT:], 0, None, False
    decoder, trailing = json.JSONDecoder(), ""
    while (at := text.find("{", at)) >= 0:
        try:
            parsed, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            broken, at = broken or _OPENED.match(text, at) is not None, at + 1
            continue
        last, at, trailing = parsed, end, text[end:]
    if last is None:
        raise Unusable("there is no JSON object in it")
    if broken or trailing.strip(" \r\n\t`"):
        raise Unusable("it does not end with one JSON object that can be read")
    return last


def number(answer: dict[str, Any], key: str, low: float, high: float) -> float:
    value = answer.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unusable(
            f'"{key}" must be a number from {low:g} to {high:g}'
            + ("" if value is None else f", not {json.dumps(value)[:40]}")
        )
    if not low <= value <= high:
        raise Unusable(f'"{key}" is {value:g}, outside the scale from {low:g} to {high:g}')
    return float(value)


def ask_json(
    judge: Judge, requests: Sequence[JudgeRequest], parse: Callable[[dict[str, Any]], T], repair: bool = True
) -> list[Verdict[T]]:
    """Ask, and read each answer as one JSON object; a verdict per request with its status and the reason. ``parse``
    makes a value of the object, or raises :class:`Unusable`; ``repair`` then asks once more."""
    replies = list(judge.ask(requests))
    verdicts = [read(reply, parse) for reply in replies]
    to_repair = [i for i, (v, r) in enumerate(zip(verdicts, replies)) if v.status is not ScoreStatus.OK and r.ok]
    if not repair or not to_repair:
        return verdicts
    repairs = [repair_request(requests[i], str(replies[i].text), verdicts[i].detail) for i in to_repair]
    for i, reply in zip(to_repair, judge.ask(repairs)):
        second = read(reply, parse)
        detail = f"twice; first: {verdicts[i].detail}; then: {second.detail}" if second.detail else ""
        verdicts[i] = replace(second, detail=detail, repaired=True, cost_usd=verdicts[i].cost_usd + second.cost_usd)
    return verdicts


def read(reply: JudgeReply, parse: Callable[[dict[str, Any]], T]) -> Verdict[T]:
    if not reply.ok or reply.text is None:
        return Verdict(None, reply.status, reply.detail, cost_usd=reply.cost_usd)
    try:
        answer = find_object(reply.text)
        why = str(answer.get("why", "")).strip()[:REASON]
        return Verdict(parse(answer), cost_usd=reply.cost_usd, why=why)
    except Unusable as error:
        excerpt = " ".join(reply.text.split())[:80]
        return Verdict(None, ScoreStatus.ERROR, f"{error} (the judge said: {excerpt!r})", cost_usd=reply.cost_usd)


def repair_request(request: JudgeRequest, text: str, why: str) -> JudgeRequest:
    problem = fence_untrusted(("problem", why.split(" (the judge said")[0]))  # it may quote what quotes the response
    turns = (
        {"role": "assistant", "content": text.strip() or "(nothing)"},
        {"role": "user", "content": f"{problem}\n\n{REPAIR}"},
    )
    return replace(request, id=f"{request.id}:again", messages=(*request.messages, *turns))
