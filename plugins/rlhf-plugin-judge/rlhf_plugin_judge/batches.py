"""Questions as message batches. One that was sent is in the ledger: a killed process's is fetched, not paid twice."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import anthropic

from rlhf_core.rewards import ScoreStatus
from rlhf_plugin_judge.background import together
from rlhf_plugin_judge.prices import NANO
from rlhf_plugin_judge.replies import ServiceReply, failed
from rlhf_plugin_judge.retries import may_have_been_sent, retry_after, wait_before, worth_retrying

if TYPE_CHECKING:
    from rlhf_plugin_judge.ledger import Ledger
    from rlhf_plugin_judge.question import Question
    from rlhf_plugin_judge.service import AnthropicJudge

RETRIES = 8
"""The SDK's own, for what may be repeated without cost: asking how a batch is, and its results."""


async def ask_batched(judge: AnthropicJudge, questions: Sequence[Question]) -> dict[str, ServiceReply]:
    """Digest -> reply. Batches that an earlier process sent and that hold these questions are fetched first."""
    digests = {q.digest for q in questions}
    replies_by_digest: dict[str, ServiceReply] = {}
    for ledger in (judge.ledger, *judge.earlier):
        for row in ledger.open_batches():
            if digests & set(row["digests"]):
                replies_by_digest |= await fetch(judge, ledger, row["batch"], row["id"], row["digests"])
    replies_by_digest = {name: reply for name, reply in replies_by_digest.items() if name in digests}
    unanswered = [q for q in questions if q.digest not in replies_by_digest]
    size = judge.config.batch_size
    parts = [unanswered[i : i + size] for i in range(0, len(unanswered), size)]
    for replies in await together(send(judge, part) for part in parts):
        replies_by_digest |= replies
    return replies_by_digest


async def send(judge: AnthropicJudge, questions: Sequence[Question]) -> dict[str, ServiceReply]:
    """Send one batch, of as many questions as the cap allows, and wait for it."""
    fits, name = list(questions), None
    while fits and (name := judge.ledger.reserve(sum(q.most for q in fits), f"batch of {len(fits)}")) is None:
        remaining = judge.ledger.cap - judge.ledger.total
        fits = fits[: bisect_right(list(accumulate(q.most for q in fits)), remaining)]
    refused = {q.digest: judge.refused() for q in questions[len(fits) :]}
    if name is None:
        return refused
    try:
        batch = await create(judge, fits)
    except (anthropic.APIError, ValueError) as error:
        text, spent = judge.say(error), sum(q.most for q in fits)
        judge.ledger.settle(name, spent if may_have_been_sent(error) else 0, note=text[:200])
        return refused | {q.digest: failed(ScoreStatus.ERROR, text) for q in fits}
    judge.ledger.note_batch(batch, name, [q.digest for q in fits])
    judge.counts["batches"] += 1
    return refused | await fetch(judge, judge.ledger, batch, name, [q.digest for q in fits])


async def create(judge: AnthropicJudge, questions: Sequence[Question]) -> str:
    """The id of a new batch; tried again until the deadline, but not where the service may have taken it."""
    entries: Any = [{"custom_id": q.digest, "params": q.batch_params} for q in questions]
    config, clock = judge.config, asyncio.get_running_loop().time
    ends = clock() + config.deadline_s
    for attempt in range(config.max_attempts):
        try:
            batch: Any = await judge.client.messages.batches.create(requests=entries)
            if not isinstance(getattr(batch, "id", None), str):
                raise ValueError(f"the service answered with {str(batch)[:80]!r}, not a batch")
            return batch.id
        except anthropic.APIError as error:
            wait = retry_after(error)
            wait = wait_before(attempt, config.backoff_s, config.max_backoff_s) if wait is None else wait
            last = attempt + 1 == config.max_attempts or clock() + wait > ends
            if last or may_have_been_sent(error) or not worth_retrying(error):
                raise
            judge.counts[f"retried_{getattr(error, 'status_code', 'broken')}"] += 1
        await asyncio.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


async def fetch(
    judge: AnthropicJudge, ledger: Ledger, batch: str, name: str, digests: Sequence[str]
) -> dict[str, ServiceReply]:
    client = judge.client.with_options(max_retries=RETRIES)
    try:
        async with asyncio.timeout(judge.config.batch_deadline_s):
            while (await client.messages.batches.retrieve(batch)).processing_status != "ended":
                await asyncio.sleep(judge.config.batch_poll_s)
        replies: dict[str, ServiceReply] = {}
        async for entry in await client.messages.batches.results(batch):
            replies[entry.custom_id] = one_result(judge, entry)
    except TimeoutError:
        late = failed(ScoreStatus.TIMEOUT, f"batch {batch} has not ended; ask again later to fetch it")
        return dict.fromkeys(digests, late)
    except anthropic.NotFoundError:
        ledger.settle(name, ledger.amounts[name], batch=batch, note="gone; counted as spent")
        return {}
    except (anthropic.APIError, ValueError) as error:
        return {d: failed(ScoreStatus.ERROR, f"batch {batch}: {judge.say(error)}") for d in digests}
    for digest, reply in replies.items():
        judge.keep(digest, reply)
    spent = round(sum(r.cost_usd for r in replies.values()) * NANO)
    ledger.settle(name, spent, batch=batch, answers=len(replies))
    missing = failed(ScoreStatus.MISSING, f"batch {batch} has no result for it")
    return dict.fromkeys(digests, missing) | replies


def one_result(judge: AnthropicJudge, entry: Any) -> ServiceReply:
    result = entry.result
    if result.type == "succeeded":
        return judge.read(result.message)[0]
    if result.type == "errored":
        return failed(ScoreStatus.ERROR, judge.say(ValueError(f"in a batch: {result.error.error.message}")))
    return failed(ScoreStatus.MISSING, f"the batch's request was {result.type}")
