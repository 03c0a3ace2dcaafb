"""Comparisons in both orders, so that a judge's liking for a position cancels out (Zheng et al. 2023, section 3.3)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from rlhf_core.data import Message, PreferencePair
from rlhf_core.rewards import Judge, JudgeRequest, Sample, Score, ScoreStatus
from rlhf_core.runs import wilson
from rlhf_plugin_judge.delimiters import fence_untrusted
from rlhf_plugin_judge.generative import short_answer, short_question
from rlhf_plugin_judge.grading import close_judge
from rlhf_plugin_judge.texts import read_completion
from rlhf_plugin_judge.verdict import Unusable, Verdict, ask_json

if TYPE_CHECKING:
    from rlhf_plugin_judge.rewards import Asking, JudgeRewardConfig


SYSTEM = """You compare two responses of an assistant to the same conversation. {criterion}
Neither their order nor their length says which is better.
Think in one or two sentences. Then write one JSON object and nothing after it:
{{"why": "...", "better": "A"}}
where "better" is "A", "B" or "tie"."""
SHOWN = 60
POINTS = {"a": 1.0, "b": 0.0, "tie": 0.5}


@dataclass(frozen=True, slots=True)
class Match:
    id: str
    prompt: tuple[Message, ...]
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of both orders; ``share`` is the first response's: 1 won, 0 lost, 0.5 tied or split by position."""

    share: float | None
    flipped: bool = False
    """The orders contradict each other: the position decided."""
    status: ScoreStatus = ScoreStatus.OK
    detail: str = ""
    cost_usd: float = 0.0
    why: tuple[str, str] = ("", "")
    """The judge's reasons in each order; in the second it saw the first response as B."""


@dataclass(frozen=True, slots=True)
class Result:
    """One comparison, as one of its two completions sees it."""

    share: float
    flipped: bool
    rival: str
    as_a: str
    """The judge's reason where this one stood first."""
    as_b: str


def compare(judge: Judge, matches: Sequence[Match], criterion: str, asking: Asking) -> list[Outcome]:
    """Ask about each match in both orders; equal responses tie. An outcome is missing unless both have answers."""
    verdicts = iter(ask(judge, questions(matches, criterion, asking), asking))
    votes = int(getattr(asking, "votes", 1))
    return [
        Outcome(0.5) if m.first == m.second else outcome(*(list(islice(verdicts, votes)) for _ in range(2)))
        for m in matches
    ]


def ask(judge: Judge, requests: Sequence[JudgeRequest], asking: Asking) -> list[Verdict[tuple[float, str]]]:
    """Points of response A for each question, and why."""
    if getattr(asking, "form", "json") != "short":
        return ask_json(judge, requests, better, asking.repair)
    verdicts: list[Verdict[tuple[float, str]]] = []
    for reply in judge.ask(requests):
        said = short_answer(reply.text) if reply.ok and reply.text else None
        if said is not None:
            verdicts.append(Verdict((float(said == "A"), ""), cost_usd=reply.cost_usd))
            continue
        status = ScoreStatus.ERROR if reply.ok else reply.status
        detail = f"neither A nor B: {str(reply.text)[:SHOWN]!r}" if reply.ok else reply.detail
        verdicts.append(Verdict(None, status, detail, cost_usd=reply.cost_usd))
    return verdicts


def questions(matches: Sequence[Match], criterion: str, asking: Asking) -> list[JudgeRequest]:
    """Both orders of each match whose responses differ, each as often as there are votes."""
    short, votes = getattr(asking, "form", "json") == "short", int(getattr(asking, "votes", 1))
    system = "" if short else SYSTEM.format(criterion=criterion)
    requests: list[JudgeRequest] = []
    for match in matches:
        orders = (("ab", match.first, match.second), ("ba", match.second, match.first))
        for order, a, b in orders if match.first != match.second else ():
            blocks = (("response_a", a), ("response_b", b))
            text = short_question(match.prompt, a, b) if short else fence_untrusted(*blocks, conversation=match.prompt)
            for vote in range(votes):
                one = asking.model_copy(update={"seed": (asking.seed + vote) % 2**64})
                requests.append(one.request(f"{match.id}:{order}" + (f":{vote}" if vote else ""), text, system))
    return requests


def matches_of(pairs: Sequence[PreferencePair]) -> list[Match]:
    return [Match(p.id, p.prompt, p.chosen, p.rejected) for p in pairs]


def better(answer: dict[str, Any]) -> tuple[float, str]:
    """Points of response A, and why. "a" and "response A" are A too."""
    points = POINTS.get(str(answer.get("better", "")).strip().lower().removeprefix("response "))
    if points is None:
        raise Unusable('"better" must be "A", "B" or "tie"')
    return points, str(answer.get("why", "")).strip()


def outcome(ab: Sequence[Verdict[tuple[float, str]]], ba: Sequence[Verdict[tuple[float, str]]]) -> Outcome:
    """The votes of both orders together; the second one's A is the match's second response."""
    cost = sum(vote.cost_usd for vote in (*ab, *ba))
    votes = [[vote.value for vote in order if vote.value is not None] for order in (ab, ba)]
    if not all(votes):
        unanswered = next(vote for vote in (*ab, *ba) if vote.value is None)
        return Outcome(None, False, unanswered.status, unanswered.detail, cost)
    first, second = (sum(points for points, _ in order) / len(order) for order in votes)
    flipped = (first - 0.5) * (second - 0.5) > 0
    return Outcome((first + 1 - second) / 2, flipped, cost_usd=cost, why=(votes[0][0][1], votes[1][0][1]))


class PairwiseReward:
    """Win share of each completion within its group; parts ``comparisons`` and ``flipped`` (position decided)."""

    def __init__(self, config: JudgeRewardConfig, judge: Judge) -> None:
        self.config, self.judge = config, judge

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        groups: dict[str, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            groups[sample.prompt.id].append(i)
        pairs = [(rows[i], rows[j]) for rows in groups.values() for i, j in ring(len(rows), self.config.rivals)]
        matches = [match_of(samples, i, j) for i, j in pairs]
        outcomes = compare(self.judge, matches, self.config.criterion, self.config.asking)
        results: dict[int, list[Result]] = defaultdict(list)
        missing: dict[int, Outcome] = {}
        for (i, j), outcome_ij in zip(pairs, outcomes):
            if outcome_ij.share is None:
                missing |= {i: outcome_ij, j: outcome_ij}
            else:
                first, second = outcome_ij.why
                results[i].append(Result(outcome_ij.share, outcome_ij.flipped, samples[j].completion, first, second))
                results[j].append(
                    Result(1 - outcome_ij.share, outcome_ij.flipped, samples[i].completion, second, first)
                )
        return [win_share(results[i], missing.get(i)) for i in range(len(samples))]

    def close(self) -> None:
        close_judge(self.judge)


def match_of(samples: Sequence[Sample], i: int, j: int) -> Match:
    prompt = samples[i].prompt
    first, second = read_completion(samples[i]), read_completion(samples[j])
    return Match(f"{prompt.id}:{i}:{j}", prompt.messages, first, second)


def ring(size: int, rivals: int | None) -> list[tuple[int, int]]:
    """Which of a group are compared: all pairs, or each with the ``rivals / 2`` that follow it in a ring."""
    if rivals is None or rivals >= size - 1:
        return [(i, j) for i in range(size) for j in range(i + 1, size)]
    steps = range(1, rivals // 2 + 1)
    return [(i, (i + step) % size) for step in steps for i in range(size)]


def win_share(rows: Sequence[Result], missing: Outcome | None) -> Score:
    """The mean share of one completion's comparisons; the detail has a line of reasons for each."""
    if not rows:
        why = "no other completion of this prompt to compare with" if missing is None else missing.detail
        return Score.failed(ScoreStatus.MISSING if missing is None else missing.status, why)
    return Score(
        sum(row.share for row in rows) / len(rows),
        {"comparisons": float(len(rows)), "flipped": sum(row.flipped for row in rows) / len(rows)},
        detail="\n".join(map(in_words, rows)),
    )


def in_words(row: Result) -> str:
    """Example: ``won against "It is 5.": as A: it is right; as B: the other one errs``"""
    part = "tied" if row.share == 0.5 else f"won {row.share:.0%} of the votes".replace("%", " %")
    verdict = {1.0: "won", 0.0: "lost"}.get(row.share, "the position decided" if row.flipped else part)
    rival = " ".join(row.rival.split())
    short = rival if len(rival) <= SHOWN else f"{rival[:SHOWN]}…"
    reasons = [f"as {position}: {why}" for position, why in (("A", row.as_a), ("B", row.as_b)) if why]
    return f'{verdict} against "{short}"' + (f": {'; '.join(reasons)}" if reasons else "")


def pair_agreement(judge: Judge, pairs: Sequence[PreferencePair], criterion: str, asking: Asking) -> dict[str, Any]:
    """Ask about labelled pairs in both orders. JSON values: ``accuracy`` of the ``judged`` (a tie counts half) with
    Wilson's 95 % interval ``low`` to ``high``, shares ``flipped`` and ``ties``, ``missing`` (reason -> count),
    ``cost_usd``; with shares as probabilities that chosen is better, ``brier`` (0.25 for a judge that always says half)
    and ``ece``, the expected calibration error over ten bins."""
    outcomes = compare(judge, matches_of(pairs), criterion, asking)
    shares = [o.share for o in outcomes if o.share is not None]
    accuracy = sum(shares) / len(shares) if shares else math.nan
    low, high = wilson(accuracy, len(shares))
    share = (lambda n: n / len(shares)) if shares else (lambda n: math.nan)
    flipped = sum(o.flipped for o in outcomes)
    tied = sum(o.share == 0.5 and not o.flipped for o in outcomes)
    return {
        "count": len(pairs),
        "judged": len(shares),
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "flipped": share(flipped),
        "ties": share(tied),
        **calibration(shares),
        "missing": dict(Counter(o.status.value for o in outcomes if o.share is None)),
        "cost_usd": sum(o.cost_usd for o in outcomes),
    }


def calibration(shares: Sequence[float]) -> dict[str, float]:
    """How far the shares of the chosen responses are from what they claim. The label says that chosen is better, so a
    share of s claims to be right with probability max(s, 1 - s)."""
    if not shares:
        return {"brier": math.nan, "ece": math.nan}
    bins: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for share in shares:
        claimed = max(share, 1 - share)
        right = 0.5 if share == 0.5 else float(share > 0.5)
        bins[min(int(claimed * 20), 19)].append((claimed, right))
    off = (abs(sum(claimed - right for claimed, right in of)) for of in bins.values())
    return {"brier": sum((1 - share) ** 2 for share in shares) / len(shares), "ece": sum(off) / len(shares)}
