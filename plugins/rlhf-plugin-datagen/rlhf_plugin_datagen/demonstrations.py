"""Demonstrations by draft, critique and revision under a constitution (Bai et al. 2022, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_core.data import Message
from rlhf_core.rewards import JudgeReply, JudgeRequest
from rlhf_core.rollouts import request_seed
from rlhf_plugin_datagen.items import FRAME, Item, ItemResult, Settings, length, question, reply_text, was_cut
from rlhf_plugin_datagen.principles import numbered
from rlhf_plugin_datagen.usage import Estimate, Meter
from rlhf_plugin_judge.delimiters import fence_untrusted

GUIDE = """You answer by these principles:
{principles}"""

CRITIQUE = """You criticise a draft of a response to a conversation by these principles:
{principles}

Say briefly, principle by principle where one is not kept, what is wrong and what to change. If nothing is, say so."""

REVISE = """You revise a draft of a response to a conversation, following a critique and these principles:
{principles}

Write the revised response alone, as it will be sent: no preface, no remark on the draft."""


def demonstrations(items: Sequence[Item], generator: Meter, judge: Meter, settings: Settings) -> list[ItemResult]:
    draft_requests = [
        stage_request(item, "draft", GUIDE, item.prompt, settings.max_tokens, settings.temperature, settings)
        for item in items
    ]
    drafts = texts_of(items, generator.ask(draft_requests))
    drafted = [item for item in items if drafts[item.id]]
    critiques = texts_of(drafted, judge.ask([critique_request(item, drafts[item.id], settings) for item in drafted]))
    criticised = [item for item in drafted if critiques[item.id]]
    replies = generator.ask(
        [revision_request(item, drafts[item.id], critiques[item.id], settings) for item in criticised]
    )
    revisions = texts_of(criticised, replies)
    cut_ids = {item.id for item, reply in zip(criticised, replies) if was_cut(reply, settings)}
    results: list[ItemResult] = []
    for item in items:
        stages = {
            "draft": drafts.get(item.id, ""),
            "critique": critiques.get(item.id, ""),
            "completion": revisions.get(item.id, ""),
        }
        results.append(demonstration(item, stages, item.id in cut_ids))
    return results


def demonstration(item: Item, stages: Mapping[str, str], cut_off: bool) -> ItemResult:
    """The row of an item whose three texts are there and whole, or the first that is empty."""
    for name, text in stages.items():
        if not text:
            return ItemResult(item, left_out=f"empty_{name}")
    if cut_off:
        return ItemResult(item, left_out="cut_off")
    return ItemResult(item, {name: stages[name] for name in ("completion", "draft", "critique")})


def critique_request(item: Item, draft: str, settings: Settings) -> JudgeRequest:
    """What is wrong with the draft; greedy."""
    messages = question(
        fence_untrusted(("draft", draft), conversation=item.prompt),
        "Criticise the draft.",
    )
    return stage_request(item, "critique", CRITIQUE, messages, settings.judge_tokens, 0.0, settings)


def revision_request(item: Item, draft: str, critique: str, settings: Settings) -> JudgeRequest:
    """The draft revised by its critique; greedy."""
    messages = question(
        fence_untrusted(("draft", draft), ("critique", critique), conversation=item.prompt),
        "Revise the draft.",
    )
    return stage_request(item, "revision", REVISE, messages, settings.max_tokens, 0.0, settings)


def stage_request(
    item: Item,
    stage: str,
    system: str,
    messages: tuple[Message, ...],
    max_tokens: int,
    temperature: float,
    settings: Settings,
) -> JudgeRequest:
    return JudgeRequest(
        f"{item.id}#{stage}",
        messages,
        system.format(principles=numbered(settings.principles)),
        max_tokens,
        temperature,
        request_seed(settings.seed, "data", item.id, stage),
    )


def texts_of(items: Sequence[Item], replies: Sequence[JudgeReply]) -> dict[str, str]:
    """Item -> its reply's text, "" where there was no answer."""
    return {item.id: reply_text(reply) for item, reply in zip(items, replies, strict=True)}


def estimate_demonstrations(item: Item, generator: Estimate, judge: Estimate, settings: Settings) -> None:
    rules, prompt, draft = len(numbered(settings.principles)), length(item.prompt), 4 * settings.max_tokens
    generator.add(rules + len(GUIDE) + prompt, settings.max_tokens)
    judge.add(rules + FRAME + len(CRITIQUE) + prompt + draft, settings.judge_tokens)
    generator.add(rules + FRAME + len(REVISE) + prompt + draft + 4 * settings.judge_tokens, settings.max_tokens)
