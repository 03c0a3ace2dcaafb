"""The judge behind the Anthropic API: bounded concurrency, retries, deadlines, a spend cap, kept answers."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anthropic
from pydantic import SecretStr

from rlhf_core.api import BuildContext, JudgeReply, JudgeRequest, ScoreStatus
from rlhf_core.sdk import cache_folder
from rlhf_plugin_judge.answers import Answers
from rlhf_plugin_judge.background import Background, together
from rlhf_plugin_judge.ledger import Budget, Ledger
from rlhf_plugin_judge.prices import NANO, Tokens, cost
from rlhf_plugin_judge.question import Question, question_of
from rlhf_plugin_judge.retries import GAVE_UP, may_have_been_sent, retry_after, wait_before, worth_retrying

if TYPE_CHECKING:
    from rlhf_plugin_judge.config import AnthropicConfig


class AnthropicJudge:
    """Asks a model behind the Messages API.

    Args:
        config: its settings.
        key: kept in memory only.
        ctx: the run's folder takes the ledger, ``ctx.report`` the totals, each judge's by itself.

    Raises:
        ConfigError: the ledger is damaged or cannot be written.
    """

    def __init__(self, config: AnthropicConfig, key: SecretStr, ctx: BuildContext) -> None:
        self.config, self.key, self.price = config, key, config.price
        self.ledger = Ledger(config.ledger_file(ctx.run_dir), config.max_cost_usd)
        self.earlier = [Ledger(p, config.max_cost_usd) for p in config.earlier_ledgers(ctx.run_dir)]
        """Of other days, where a batch may be that nobody has fetched."""
        self.answers = Answers(cache_folder() / "judges" / "answers" if config.cache else None)
        self.background = Background()
        self.counts: defaultdict[str, float] = defaultdict(float)
        """Requests, kept answers, attempts, retries by reason, tokens, and ``cost_usd`` of this process."""
        self._client: anthropic.AsyncAnthropic | None = None
        self._pid = 0
        self.report: dict[str, Any] = {"model": config.model, "ledger": self.ledger.path.name}
        ctx.report[next(k for k in names("judge") if k not in ctx.report)] = self.report

    def ask(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        """One reply per request, in order; equal requests are sent once."""
        if not requests:
            return []
        replies = self.background.run(self._ask([question_of(r, self.config) for r in requests]))
        self.report.update({k: round(v, 9) for k, v in sorted(self.counts.items())})
        self.report["ledger_usd"] = round(self.ledger.total / NANO, 9)  # everybody's who shares it, other processes too
        return replies

    def close(self) -> None:
        """End connections and the thread; idempotent."""
        if self.background.running and self._client is not None and self._pid == os.getpid():
            self.background.run(self._client.close())
        self._client = None
        self.background.close()

    async def _ask(self, questions: Sequence[Question]) -> list[JudgeReply]:
        if self._pid != os.getpid() or self._client is None:
            self._open()
        self.counts["requests"] += len(questions)
        replies: dict[str, JudgeReply] = {}
        todo: dict[str, Question] = {}
        for question in questions:
            if question.digest in replies or question.digest in todo:
                self.counts["kept"] += 1
            elif (row := self.answers.get(question.digest)) is not None:
                replies[question.digest] = cached_reply(row)
                self.counts["kept"] += 1
            elif question.too_long:
                replies[question.digest] = JudgeReply.failed(
                    ScoreStatus.ERROR,
                    f"the question may have more than {self.price.longest} tokens, for which "
                    f"'{self.config.model}' has no price here (judge.prices, longest)",
                )
            else:
                todo[question.digest] = question
        if self.config.batches and todo:
            from rlhf_plugin_judge.batches import ask_batched

            replies |= await ask_batched(self, list(todo.values()))
        else:
            replies |= zip(todo, await together(self._one(q) for q in todo.values()))
        return in_order(questions, replies)

    def _open(self) -> None:
        """A client of this process and its loop."""
        self._pid = os.getpid()
        self.places = asyncio.Semaphore(self.config.concurrency)
        self.budget = Budget(self.ledger)
        self.not_before = 0.0
        """On the loop's clock: no request is sent before, as the service demanded."""
        self._client = anthropic.AsyncAnthropic(
            api_key=self.key.get_secret_value(),
            base_url=self.config.base_url,
            max_retries=0,
            timeout=self.config.timeout_s,
        )

    @property
    def client(self) -> anthropic.AsyncAnthropic:
        """The SDK's client, which never retries by itself: what an attempt may cost must be reserved first."""
        assert self._client is not None
        return self._client

    async def _one(self, question: Question) -> JudgeReply:
        """One question, tried until its deadline."""
        async with self.places:
            last: list[str] = []
            try:
                async with asyncio.timeout(self.config.deadline_s):
                    return await self._attempts(question, last)
            except TimeoutError:
                self.counts["late"] += 1
                before = f"; before: {last[-1]}" if last else ""
                return JudgeReply.failed(ScoreStatus.TIMEOUT, f"no answer within {self.config.deadline_s:g} s{before}")

    async def _attempts(self, question: Question, last: list[str]) -> JudgeReply:
        """Attempts until there is an answer; ``last`` collects why each failed."""
        late = False
        for attempt in range(self.config.max_attempts):
            while (wait := self.not_before - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(wait)
            name = await self.budget.reserve(question.most, question.digest[:16])
            if name is None:
                return self.refused()
            self.counts["attempts"] += 1
            spent, facts = question.most, {"note": "cut off"}
            after: float | None = None
            try:
                message = await self._send(question)
                reply = self.reply_of(message)
                spent, facts = round(reply.cost_usd * NANO), tokens_of(message)._asdict()
                return self.keep(question.digest, reply)
            except Exception as error:
                last.append(self.say(error))
                if not may_have_been_sent(error):
                    spent = 0
                facts = {"note": last[-1][:200]}
                if not worth_retrying(error):
                    return JudgeReply.failed(ScoreStatus.ERROR, f"{last[-1]}{hint(last[-1])}")
                late, after = isinstance(error, (TimeoutError, anthropic.APITimeoutError)), retry_after(error)
                self.counts[f"retried_{getattr(error, 'status_code', 'timeout' if late else 'broken')}"] += 1
            finally:
                self.budget.settle(name, spent, what=question.digest[:16], **facts)
            if after is not None:
                self.not_before = max(self.not_before, asyncio.get_running_loop().time() + after)
            elif attempt + 1 < self.config.max_attempts:
                await asyncio.sleep(wait_before(attempt, self.config.backoff_s, self.config.max_backoff_s, random))
        status = ScoreStatus.TIMEOUT if late else ScoreStatus.ERROR
        return JudgeReply.failed(status, GAVE_UP.format(self.config.max_attempts, last[-1]))

    async def _send(self, question: Question) -> Any:
        more = {} if question.temperature is None else {"temperature": question.temperature}
        async with asyncio.timeout(self.config.timeout_s):
            return await self.client.messages.create(**question.params, extra_body=more)

    def refused(self) -> JudgeReply:
        """The reply to a question that would exceed the cap."""
        self.counts["over_cap"] += 1
        spent, cap = self.ledger.total / NANO, self.config.max_cost_usd
        return JudgeReply.failed(
            ScoreStatus.MISSING,
            f"the spend cap is reached: {spent:.6f} of {cap:g} USD are spent "
            f"or reserved in {self.ledger.path}; raise judge.max_cost_usd",
        )

    def reply_of(self, message: Any) -> JudgeReply:
        """The text of a message, with its cost.

        Raises:
            ValueError: it is no message.
        """
        if not isinstance(message, anthropic.types.Message):
            raise ValueError(f"the service answered with {type(message).__name__} {str(message)[:80]!r}, not a message")
        tokens = tokens_of(message)
        share = self.config.batch_price if self.config.batches else 1.0
        usd = cost(self.price, tokens, share) / NANO
        text = "".join(block.text for block in message.content if block.type == "text")
        size = tokens.input + tokens.cache_write + tokens.cache_read
        for key, value in {"input_tokens": size, "output_tokens": tokens.output, "cost_usd": usd, "answers": 1}.items():
            self.counts[key] += value
        status = ScoreStatus.OK if text else ScoreStatus.MISSING
        why = "" if text else f"no text: it stopped for '{message.stop_reason}'"
        return JudgeReply(text or None, status, why, size, tokens.output, usd)

    def keep(self, name: str, reply: JudgeReply) -> JudgeReply:
        """Put an answer into the cache under its question's digest; on a full disk it is only not kept."""
        if reply.ok:
            try:
                self.answers.put(
                    name,
                    {
                        "text": reply.text,
                        "model": self.config.model,
                        "input_tokens": reply.input_tokens,
                        "output_tokens": reply.output_tokens,
                        "cost_usd": reply.cost_usd,
                        "at": round(time.time(), 3),
                    },
                )
            except (OSError, RuntimeError, ValueError):
                self.counts["not_kept"] += 1
        return reply

    def say(self, error: Exception) -> str:
        """What went wrong, in one line that never holds the key."""
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, TimeoutError):
            text = f"no answer within {self.config.timeout_s:g} s"
        return text.replace(self.key.get_secret_value(), "***")[:400]


def names(first: str) -> Iterator[str]:
    """``judge``, ``judge_2``, ``judge_3``, ..."""
    yield first
    yield from (f"{first}_{n}" for n in itertools.count(2))


def tokens_of(message: Any) -> Tokens:
    """What a message took."""
    usage = message.usage
    return Tokens(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens or 0,
        usage.cache_read_input_tokens or 0,
    )


def cached_reply(row: dict[str, Any]) -> JudgeReply:
    """An answer from the cache; it costs nothing now."""
    return JudgeReply(
        row["text"],
        input_tokens=int(row.get("input_tokens", 0)),
        output_tokens=int(row.get("output_tokens", 0)),
        cached=True,
    )


def in_order(questions: Sequence[Question], replies: Mapping[str, JudgeReply]) -> list[JudgeReply]:
    """One reply per question; only the first of equal questions bears the cost."""
    answered: set[str] = set()
    ordered: list[JudgeReply] = []
    for question in questions:
        reply = replies[question.digest]
        ordered.append(repeated(reply) if question.digest in answered else reply)
        answered.add(question.digest)
    return ordered


def repeated(reply: JudgeReply) -> JudgeReply:
    """The reply to a question that another request of the same call has asked."""
    return JudgeReply(reply.text, reply.status, reply.detail, reply.input_tokens, reply.output_tokens, cached=reply.ok)


def hint(text: str) -> str:
    """What to change, for the refusals that have one cause."""
    if "temperature" in text:
        return "; set judge.send_temperature=false for this model"
    return "; check ANTHROPIC_API_KEY" if "401" in text else ""
