"""Propose, verify, refine: rounds of best-of-N with exact feedback, and an archive of the best."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhf_core.config import RlhfError
from rlhf_core.rewards import JudgeReply, JudgeRequest, Sample, Score
from rlhf_plugin_discover.archive import START, Archive, Journal, Proposal, Verdict
from rlhf_plugin_discover.config import DiscoverConfig
from rlhf_plugin_discover.conversation import SYSTEM, Conversation, messages
from rlhf_plugin_discover.tasks import Task

Say = Callable[[str], None]


class Discovery:
    """One search; built from what the journal holds, so that it goes on where an earlier process stopped."""

    def __init__(
        self,
        task: Task,
        config: DiscoverConfig,
        judge: Any,
        verifier: Any,
        journal: Journal,
        say: Say = lambda line: None,
    ) -> None:
        self.task, self.config, self.judge, self.verifier = task, config, judge, verifier
        self.journal, self.say = journal, say
        self.archive = Archive(config.archive)
        self.conversations = [Conversation(slot) for slot in range(config.samples)]
        self.improved: Callable[[Verdict], None] = lambda verdict: None
        """Called with each new best."""

    def run(self) -> str:
        """Go on until the budget is used up; returns why it ended."""
        self.restore()
        silent, number = 0, len(self.journal.rounds)
        while not (ended := self.over(number)):
            started = time.perf_counter()
            answered = self.round(number)
            self.finish(number, time.perf_counter() - started)
            silent = 0 if answered else silent + 1
            if silent >= self.config.failures:
                last = self.journal.proposals[-1]
                raise RlhfError(
                    f"the judge gave no answer in {silent} rounds",
                    fix="fix it, and go on with --resume",
                    where=f"judge '{self.config.judge.name}'",
                    why=f"{last.status}: {last.detail[:300]}",
                )
            number += 1
        return ended

    def restore(self) -> None:
        """Give every kept answer its verdict, and bring archive and conversations to where they were."""
        judged_ids = {v.id for v in self.journal.verdicts}
        if START not in judged_ids:
            self.verify([(START, self.task.answer(self.task.starter))])
        answered = [p for p in self.journal.proposals if p.reply is not None]
        self.verify([(p.id, p.reply) for p in answered if p.id not in judged_ids])
        verdicts = {v.id: v for v in self.journal.verdicts}
        self.archive.add(verdicts[START])
        for number in range(len(self.journal.rounds)):
            self.learn(number, verdicts)

    def over(self, number: int) -> str:
        budget, journal = self.config.budget, self.journal
        if budget.target is not None and self.archive.best[0].worth >= budget.target:
            return f"the score of {budget.target:g} is reached"
        if number >= budget.rounds:
            return f"{budget.rounds} rounds are done"
        if budget.calls is not None and journal.calls >= budget.calls:
            return f"{journal.calls} calls are made"
        if budget.seconds is not None and journal.seconds >= budget.seconds:
            return f"{journal.seconds:.0f} s are over"
        if self.affordable() < 1:
            return f"{journal.spent_usd:.4f} USD are spent"
        return ""

    def affordable(self) -> int:
        """Questions that the budget still allows, at the price of the dearest answer so far."""
        budget, questions = self.config.budget, self.config.samples
        if budget.calls is not None:
            questions = min(questions, budget.calls - self.journal.calls)
        dearest = max((p.cost_usd for p in self.journal.questions), default=0.0)
        if budget.usd is not None and (dearest or self.journal.spent_usd >= budget.usd):
            questions = min(questions, int((budget.usd - self.journal.spent_usd) / max(dearest, 1e-12)))
        return questions

    def round(self, number: int) -> bool:
        """Ask every conversation that has no answer yet, and judge; False if not one answer came."""
        self.prepare(number)
        answered_slots = {p.slot for p in self.journal.proposals if p.round == number}
        waiting = [c for c in self.conversations if c.slot not in answered_slots][: max(self.affordable(), 0)]
        questions = [self.question(c, number) for c in waiting]
        replies: Sequence[JudgeReply] = self.judge.ask([request for request, _ in questions]) if questions else []
        if len(replies) != len(questions):
            raise RlhfError(
                f"the judge gave {len(replies)} replies to {len(questions)} questions",
                where=f"judge '{self.config.judge.name}'",
            )
        proposals = [with_reply(unanswered, reply) for (_, unanswered), reply in zip(questions, replies)]
        self.journal.propose(proposals)
        self.verify([(p.id, p.reply) for p in proposals if p.reply is not None])
        self.learn(number, {v.id: v for v in self.journal.verdicts}, prepared=True)
        return any(p.reply is not None for p in self.journal.proposals if p.round == number)

    def prepare(self, number: int) -> None:
        """Conversation 0 builds on the best there is; one without progress begins again from the archive."""
        for c in self.conversations:
            best = self.archive.best[0]
            if c.slot == 0 and best.worth > self.archive.verdicts[c.parent].worth:
                c.build_on(best.id)
            elif len(c.failed) >= self.config.patience:
                c.build_on(self.archive.pick(random.Random(f"{self.config.seed}/{number}/{c.slot}")))

    def question(self, c: Conversation, number: int) -> tuple[JudgeRequest, Proposal]:
        config, verdicts = self.config, self.archive.verdicts
        shown = c.failed[max(0, len(c.failed) - config.history) :]
        turns = messages(
            self.task.question,
            self.task.settings.unit,
            verdicts[c.parent],
            [verdicts[i] for i in shown],
            self.archive.best[0].worth,
            config.feedback_characters,
        )
        name = f"{number}/{c.slot}"
        seed = random.Random(f"{config.seed}/{name}").getrandbits(31)
        request = JudgeRequest(f"{self.task.name}/{name}", turns, SYSTEM, config.max_tokens, config.temperature, seed)
        return request, Proposal(name, number, c.slot, c.parent, tuple(shown), list(turns), None)

    def verify(self, answers: Sequence[tuple[str, str | None]]) -> None:
        """Judge answers and keep the verdicts."""
        if not answers:
            return
        scores: Sequence[Score] = self.verifier.score([Sample(self.task.prompt, text or "") for _, text in answers])
        self.journal.judge(
            [
                Verdict(name, s.value, s.status.value, dict(s.parts), s.detail, self.task.program(text or ""))
                for (name, text), s in zip(answers, scores)
            ]
        )

    def learn(self, number: int, verdicts: Mapping[str, Verdict], *, prepared: bool = False) -> None:
        if not prepared:
            self.prepare(number)
        for p in sorted((p for p in self.journal.proposals if p.round == number), key=lambda p: p.slot):
            if p.id not in verdicts:
                continue
            new = self.archive.add(verdicts[p.id])
            if p.slot < len(self.conversations):
                self.conversations[p.slot].take(verdicts[p.id], self.archive)
            if new and prepared:
                self.improved(verdicts[p.id])

    def finish(self, number: int, seconds: float) -> None:
        ids = [p.id for p in self.journal.proposals if p.round == number]
        verdicts = [self.archive.verdicts[i] for i in ids if i in self.archive.verdicts]
        valid = [v for v in verdicts if v.valid]
        best = self.archive.best[0]
        row = {
            "round": number,
            "seconds": round(seconds, 3),
            "proposals": len(ids),
            "valid": len(valid),
            "round_best": max((v.worth for v in valid), default=None),
            "best": best.worth if best.valid else None,
            "best_id": best.id,
            "statuses": dict(Counter(v.status for v in verdicts)),
            "calls": self.journal.calls,
            "cost_usd": round(self.journal.spent_usd, 6),
        }
        self.journal.end_round(row)
        round_best, best_so_far = ("none" if row[key] is None else f"{row[key]:g}" for key in ("round_best", "best"))
        self.say(
            f"round {number + 1}: {len(valid)} of {len(ids)} valid, best {round_best}; best so far {best_so_far} "
            f"{self.task.settings.unit} ({best.id}); {row['calls']} calls, {row['cost_usd']:.4f} USD, "
            f"{seconds:.1f} s"
        )


def with_reply(unanswered: Proposal, reply: JudgeReply) -> Proposal:
    same = ("detail", "input_tokens", "output_tokens", "cost_usd", "cached")
    facts = {name: getattr(reply, name) for name in same}
    return replace(unanswered, reply=reply.text, status=reply.status.value, **facts)
