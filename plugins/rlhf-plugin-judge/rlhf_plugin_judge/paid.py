"""A service that is paid by the token: bounded concurrency, retries, deadlines, a spend cap, kept answers."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import SecretStr

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.data import cache_folder
from rlhf_core.rewards import JudgeRequest, ScoreStatus
from rlhf_plugin_judge.background import Background, together
from rlhf_plugin_judge.ledger import Budget, Ledger
from rlhf_plugin_judge.paid_config import PaidConfig
from rlhf_plugin_judge.prices import NANO, Tokens
from rlhf_plugin_judge.replies import Answers, ServiceReply, failed, stored_reply, stored_row
from rlhf_plugin_judge.retries import (
    GAVE_UP,
    is_a,
    may_have_been_sent,
    retry_after,
    timed_out,
    wait_before,
    worth_retrying,
)

if TYPE_CHECKING:
    from rlhf_plugin_judge.question import Question

C = TypeVar("C", bound=PaidConfig)
UNKNOWN = (
    "an earlier attempt was {}, and it may have been billed; judge.repeat_after_{}=true (--set backend.repeat_after_{}"
    "=true for agents) asks again"
)


class PaidService(Generic[C]):
    """Asks a model behind a service whose protocol the subclass knows; ``ctx.report`` gets the totals."""

    def __init__(self, config: C, key: SecretStr, ctx: BuildContext) -> None:
        self.config, self.secret, self.price = config, key, config.price
        self.ledger = Ledger(config.ledger_file(ctx.run_dir), config.max_cost_usd)
        self.earlier = [Ledger(p, config.max_cost_usd) for p in config.earlier_ledgers(ctx.run_dir)]
        """Of other days, which know what was sent and not answered."""
        self.answers = Answers(cache_folder() / "judges" / "answers" if config.cache else None)
        self.background = Background()
        self.counts: defaultdict[str, float] = defaultdict(float)
        """Requests, kept answers, attempts, retries by reason, tokens, and ``cost_usd`` of this process."""
        self._client: Any = None
        self._pid = 0
        self.report: dict[str, Any] = {"model": config.model, "ledger": self.ledger.path.name}
        ctx.report[next(k for k in names("judge") if k not in ctx.report)] = self.report

    client_class: Callable[..., Any]

    async def send(self, question: Question) -> Any:
        raise NotImplementedError

    def read(self, message: Any, question: Question | None = None) -> tuple[ServiceReply, Tokens]:
        """What the service answered to a question, with its cost, which is counted; ValueError if it is no answer."""
        raise NotImplementedError

    async def ask_together(self, questions: Sequence[Question]) -> Mapping[str, ServiceReply] | None:
        """Digest -> reply, where the service takes all questions at once; None: they are asked one by one."""
        return None

    def ask(self, requests: Sequence[JudgeRequest]) -> list[ServiceReply]:
        """One reply per request, in order; equal requests are sent once. May be called from several threads."""
        if not requests:
            return []
        return self.background.run(self._ask([self.config.question_of(r) for r in requests]))

    async def models(self) -> list[str]:
        raise NotImplementedError

    def listed(self) -> list[str]:
        """The service's models, [] where it does not list any; asking costs nothing."""
        return self.background.run(self._listed())

    async def _listed(self) -> list[str]:
        self._open_here()
        config = self.config
        who = f"{config.what} '{config.name}'"
        try:
            async with asyncio.timeout(min(10.0, config.timeout_s)):
                return await self.models()
        except Exception as error:
            if getattr(error, "status_code", 0) in (401, 403):
                what = f"{who}: the key in {config.key_variable} is refused"
                raise ConfigError(what, why=self.say(error), fix="set another one") from error
            if is_a(error, "APIConnectionError") and not may_have_been_sent(error):
                raise ConfigError(
                    f"{who}: no server answers at {config.address or 'the address of the service'}",
                    why=self.say(error),
                    fix=f"start the server, or set {config.what}.base_url to where it is",
                ) from error
            return []  # it is there, and does not list models, or not now

    def close(self) -> None:
        """End connections and the thread; idempotent."""
        if self.background.running and self._client is not None and self._pid == os.getpid():
            self.background.run(self._client.close())
        self._client = None
        self.background.close()

    async def _ask(self, questions: Sequence[Question]) -> list[ServiceReply]:
        self._open_here()
        self.counts["requests"] += len(questions)
        replies: dict[str, ServiceReply] = {}
        todo: dict[str, Question] = {}
        for question in questions:
            if question.digest in replies or question.digest in todo:
                self.counts["kept"] += 1
            elif (row := self.answers.get(question.digest)) is not None:
                replies[question.digest] = stored_reply(row)
                self.counts["kept"] += 1
            elif question.too_long:
                replies[question.digest] = failed(
                    ScoreStatus.ERROR,
                    f"the question may have more than {self.price.longest} tokens, for which "
                    f"'{self.config.model}' has no price here (judge.prices, longest)",
                )
            else:
                todo[question.digest] = question
        at_once = await self.ask_together(list(todo.values())) if todo else None
        replies |= at_once if at_once is not None else zip(todo, await together(self._one(q) for q in todo.values()))
        self.report.update({k: round(v, 9) for k, v in sorted(self.counts.items())})
        self.report["ledger_usd"] = round(self.ledger.total / NANO, 9)  # everybody's who shares it, other processes too
        return in_order(questions, replies)

    def _open_here(self) -> None:
        """A client of this process and its loop, unless there is one."""
        if self._pid == os.getpid() and self._client is not None:
            return
        self._pid = os.getpid()
        self.slots = asyncio.Semaphore(self.config.concurrency)
        self.budget = Budget(self.ledger)
        self.not_before = 0.0
        """On the loop's clock: no request is sent before, as the service demanded."""
        # It never retries by itself: what an attempt may cost must be reserved first.
        self._client = self.client_class(
            api_key=self.secret.get_secret_value(),
            base_url=self.config.base_url,
            max_retries=0,
            timeout=self.config.timeout_s,
        )

    @property
    def client(self) -> Any:
        assert self._client is not None
        return self._client

    async def _one(self, question: Question) -> ServiceReply:
        async with self.slots:
            last: list[str] = []
            try:
                async with asyncio.timeout(self.config.deadline_s):
                    return await self._attempts(question, last)
            except TimeoutError:
                self.counts["late"] += 1
                before = f"; before: {last[-1]}" if last else ""
                return failed(ScoreStatus.TIMEOUT, f"no answer within {self.config.deadline_s:g} s{before}")

    async def _attempts(self, question: Question, last: list[str]) -> ServiceReply:
        """Attempts until there is an answer; ``last`` collects why each failed."""
        late, config = False, self.config
        for attempt in range(config.max_attempts):
            if why := self.unknown(question):
                self.counts["not_repeated"] += 1
                before = f"; before: {last[-1]}" if last else ""
                return failed(ScoreStatus.MISSING, f"{why}{before}")
            while (wait := self.not_before - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(wait)
            name = await self.budget.reserve(question.most, question.digest[:16])
            if name is None:
                return self.refused()
            self.counts["attempts"] += 1
            spent, facts = question.most, {"note": "cut off"}
            after: float | None = None
            try:
                async with asyncio.timeout(config.timeout_s):
                    message = await self.send(question)
                reply, tokens = self.read(message, question)
                spent, facts = round(reply.cost_usd * NANO), tokens._asdict()
                return self.keep(question.digest, reply)
            except Exception as error:
                last.append(self.say(error))
                if not may_have_been_sent(error):
                    spent = 0
                facts = {"note": last[-1][:200]}
                if not worth_retrying(error):
                    return failed(ScoreStatus.ERROR, f"{last[-1]}{self.hint(last[-1])}")
                late, after = timed_out(error), retry_after(error)
                self.counts[f"retried_{getattr(error, 'status_code', 'timeout' if late else 'broken')}"] += 1
            finally:
                self.budget.settle(name, spent, what=question.digest[:16], **facts)
            if after is not None:
                self.not_before = max(self.not_before, asyncio.get_running_loop().time() + after)
            elif attempt + 1 < config.max_attempts:
                await asyncio.sleep(wait_before(attempt, config.backoff_s, config.max_backoff_s, random))
        status = ScoreStatus.TIMEOUT if late else ScoreStatus.ERROR
        return failed(status, GAVE_UP.format(config.max_attempts, last[-1]))

    def unknown(self, question: Question) -> str:
        """Why the question must not be sent: an attempt at it may have been billed, and is not to be repeated."""
        what, ledgers = question.digest[:16], (self.ledger, *self.earlier)
        for how, text in (("kill", "in flight when its process was killed"), ("timeout", "cut off")):
            if not getattr(self.config, f"repeat_after_{how}") and any(x.unanswered(what, how) for x in ledgers):
                return UNKNOWN.format(text, how, how)
        return ""

    def refused(self) -> ServiceReply:
        self.counts["over_cap"] += 1
        spent, cap = self.ledger.total / NANO, self.config.max_cost_usd
        return failed(
            ScoreStatus.MISSING,
            f"the spend cap is reached: {spent:.6f} of {cap:g} USD are spent "
            f"or reserved in {self.ledger.path}; raise judge.max_cost_usd",
        )

    def counted(
        self,
        text: str,
        calls: Sequence[Mapping[str, str]],
        stopped: Any,
        tokens: Tokens,
        usd: float,
        question: Question | None,
    ) -> ServiceReply:
        """A reply whose tokens and cost are counted; without text or calls it is missing."""
        size, tools = tokens.input + tokens.cache_write + tokens.cache_read, question is not None and question.tools
        for key, value in {"input_tokens": size, "output_tokens": tokens.output, "cost_usd": usd, "answers": 1}.items():
            self.counts[key] += value
        status, why, answer = ScoreStatus.OK, "", text if tools else text or None
        if answer is None:
            status, why = ScoreStatus.MISSING, f"no text: it stopped for '{stopped}'"
        return ServiceReply(
            answer,
            status,
            why,
            size,
            tokens.output,
            usd,
            calls=tuple(calls),
            stopped=str(stopped) if tools else "",
            paid_usd=usd,
        )

    def keep(self, name: str, reply: ServiceReply) -> ServiceReply:
        """Put an answer into the cache under its question's digest; on a full disk it is only not kept."""
        if reply.ok:
            try:
                self.answers.put(name, stored_row(reply, self.config.model, time.time()))
            except (OSError, RuntimeError, ValueError):
                self.counts["not_kept"] += 1
        return reply

    def say(self, error: Exception) -> str:
        """What went wrong, in one line that never holds the key."""
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, TimeoutError):
            text = f"no answer within {self.config.timeout_s:g} s"
        return text.replace(self.secret.get_secret_value(), "***")[:400]

    def hint(self, text: str) -> str:
        if "temperature" in text:
            return "; set judge.send_temperature=false for this model"
        return f"; check {self.config.key_variable}" if "401" in text else ""


def names(first: str) -> Iterator[str]:
    """``judge``, ``judge_2``, ``judge_3``, ..."""
    yield first
    yield from (f"{first}_{n}" for n in itertools.count(2))


def in_order(questions: Sequence[Question], replies: Mapping[str, ServiceReply]) -> list[ServiceReply]:
    """One reply per question; only the first of equal questions bears the cost."""
    answered: set[str] = set()
    ordered: list[ServiceReply] = []
    for question in questions:
        reply = replies[question.digest]
        again = replace(reply, cost_usd=0.0, cached=reply.ok)
        ordered.append(again if question.digest in answered else reply)
        answered.add(question.digest)
    return ordered
