"""Preference pairs by a constitution (Bai et al. 2022), each judged in both orders (the swap: Zheng et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.rewards import JudgeReply
from rlhf_plugin_datagen.items import FRAME, Item, ItemResult, Settings, length, reply_text, response_request, was_cut
from rlhf_plugin_datagen.principles import numbered
from rlhf_plugin_datagen.usage import Estimate, Meter
from rlhf_plugin_judge.pairwise import SYSTEM, Match, Outcome, compare
from rlhf_plugin_judge.rewards import Asking

BETTER = """The better one keeps these principles better:
{principles}
Say in one sentence why, and name the principle."""


def preferences(items: Sequence[Item], generator: Meter, judge: Meter, settings: Settings) -> list[ItemResult]:
    """Two responses each, compared in both orders; a tie or a verdict that changes is no preference."""
    replies = two_responses(items, generator, settings)
    texts = {item.id: [reply_text(reply) for reply in replies[item.id]] for item in items}
    reasons = {item.id: unusable(replies[item.id], settings) for item in items}
    comparable = [item for item in items if not reasons[item.id] and item.id not in generator.unanswered]
    matches = [Match(f"{item.id}#pair", item.prompt, *texts[item.id]) for item in comparable]
    criterion = BETTER.format(principles=numbered(settings.principles))
    outcomes = compare(judge, matches, criterion, Asking(max_tokens=settings.judge_tokens))
    outcome_of = {item.id: outcome for item, outcome in zip(comparable, outcomes)}
    results: list[ItemResult] = []
    for item in items:
        if item.id in outcome_of:
            results.append(preference(item, texts[item.id], outcome_of[item.id]))
        else:
            results.append(ItemResult(item, left_out=reasons[item.id], detail=" | ".join(texts[item.id])))
    return results


def two_responses(items: Sequence[Item], generator: Meter, settings: Settings) -> dict[str, Sequence[JudgeReply]]:
    """Item -> its two replies; all are asked for at once."""
    requests = [response_request(item, f"{item.id}#response{k}", k, settings) for item in items for k in range(2)]
    replies = generator.ask(requests)
    return {item.id: replies[2 * i : 2 * i + 2] for i, item in enumerate(items)}


def unusable(replies: Sequence[JudgeReply], settings: Settings) -> str:
    """Why two responses make no pair, "" if they do."""
    first, second = (reply_text(reply) for reply in replies)
    if not first or not second:
        return "empty_response"
    if first == second:
        return "identical_responses"
    return "cut_off" if any(was_cut(reply, settings) for reply in replies) else ""


def preference(item: Item, texts: Sequence[str], outcome: Outcome) -> ItemResult:
    """The row of a comparison in both orders, or why it decides nothing."""
    if outcome.share is None:
        return ItemResult(item, left_out="judge_unusable", detail=outcome.detail)
    if outcome.share not in (0.0, 1.0):
        tie = outcome.share == 0.5 and not outcome.flipped
        return ItemResult(item, left_out="tie" if tie else "order_decides", detail=" / swapped: ".join(outcome.why))
    chosen, rejected = texts if outcome.share == 1.0 else texts[::-1]
    return ItemResult(item, {"chosen": chosen, "rejected": rejected, "why": outcome.why[0]})


def estimate_preferences(item: Item, generator: Estimate, judge: Estimate, settings: Settings) -> None:
    generator.add(length(item.prompt), settings.max_tokens, times=2)
    system = FRAME + len(SYSTEM) + len(BETTER) + len(numbered(settings.principles))
    judge.add(length(item.prompt) + system + 8 * settings.max_tokens, settings.judge_tokens, times=2)
