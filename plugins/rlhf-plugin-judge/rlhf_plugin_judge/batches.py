"""Questions as message batches. One that was sent is in the ledger: a killed process's is fetched, not paid twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anthropic

from rlhf_core.api import JudgeReply, ScoreStatus
from rlhf_plugin_judge.prices import NANO
from rlhf_plugin_judge.question import Question
from rlhf_plugin_judge.retries import may_have_been_sent

if TYPE_CHECKING:
    from rlhf_plugin_judge.service import AnthropicJudge

RETRIES = 8
"""The SDK's own, for what may be repeated without cost: asking how a batch is, and its results."""


async def ask_batched(judge: AnthropicJudge, questions: Sequence[Question]) -> dict[str, JudgeReply]:
    """Digest -> reply. Batches that an earlier process sent and that hold these questions are fetched first."""
    wanted = {q.digest for q in questions}
    found: dict[str, JudgeReply] = {}
    for row in judge.ledger.open_batches():
        if wanted & set(row["digests"]):
            found |= await fetch(judge, row["batch"], row["id"], row["digests"])
    found = {name: reply for name, reply in found.items() if name in wanted}
    rest = [q for q in questions if q.digest not in found]
    size = judge.config.batch_size
    parts = [rest[i : i + size] for i in range(0, len(rest), size)]
    for replies in await asyncio.gather(*(send(judge, part) for part in parts)):
        found |= replies
    return found


async def send(judge: AnthropicJudge, questions: Sequence[Question]) -> dict[str, JudgeReply]:
    """Send one batch, of as many questions as the cap has room for, and wait for it."""
    fits, name = list(questions), None
    while fits and (name := judge.ledger.reserve(sum(q.most for q in fits), f"batch of {len(fits)}")) is None:
        fits = fits[: len(fits) // 2]
    left = {q.digest: judge.refused() for q in questions[len(fits) :]}
    if name is None:
        return left
    entries: Any = [{"custom_id": q.digest, "params": q.batch_params} for q in fits]
    spent = sum(q.most for q in fits)
    try:
        batch = await judge.client.messages.batches.create(requests=entries)
    except anthropic.APIError as error:
        text = judge.say(error)
        judge.ledger.settle(name, spent if may_have_been_sent(error) else 0, note=text[:200])
        return left | {q.digest: JudgeReply.failed(ScoreStatus.ERROR, text) for q in fits}
    judge.ledger.note_batch(batch.id, name, [q.digest for q in fits])
    judge.seen["batches"] += 1
    return left | await fetch(judge, batch.id, name, [q.digest for q in fits])


async def fetch(judge: AnthropicJudge, batch: str, name: str, digests: Sequence[str]) -> dict[str, JudgeReply]:
    """Wait for a batch, keep its answers, and write down what it cost; {} if the service no longer knows it."""
    client = judge.client.with_options(max_retries=RETRIES)
    try:
        async with asyncio.timeout(judge.config.batch_deadline_s):
            while (await client.messages.batches.retrieve(batch)).processing_status != "ended":
                await asyncio.sleep(judge.config.batch_poll_s)
        found: dict[str, JudgeReply] = {}
        async for entry in await client.messages.batches.results(batch):
            found[entry.custom_id] = one_result(judge, entry)
    except TimeoutError:
        return {d: JudgeReply.failed(ScoreStatus.TIMEOUT, f"batch {batch} has not ended; ask again later to fetch it")
                for d in digests}
    except anthropic.NotFoundError:
        judge.ledger.settle(name, judge.ledger.amounts[name], batch=batch, note="gone; counted as spent")
        return {}
    except (anthropic.APIError, ValueError) as error:
        return {d: JudgeReply.failed(ScoreStatus.ERROR, f"batch {batch}: {judge.say(error)}") for d in digests}
    for digest, reply in found.items():
        judge.keep(digest, reply)
    lost = {d: JudgeReply.failed(ScoreStatus.MISSING, f"batch {batch} has no result for it") for d in digests}
    judge.ledger.settle(name, round(sum(r.cost_usd for r in found.values()) * NANO), batch=batch, answers=len(found))
    return lost | found


def one_result(judge: AnthropicJudge, entry: Any) -> JudgeReply:
    """One line of a batch's results."""
    result = entry.result
    if result.type == "succeeded":
        return judge.reply_of(result.message)
    if result.type == "errored":
        return JudgeReply.failed(ScoreStatus.ERROR, judge.say(ValueError(f"in a batch: {result.error.error.message}")))
    return JudgeReply.failed(ScoreStatus.MISSING, f"the batch's request was {result.type}")
