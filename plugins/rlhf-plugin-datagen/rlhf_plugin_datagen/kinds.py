"""What is generated: preferences by a constitution, demonstrations by draft, critique and revision, rubric grades.

Each kind takes items through its questions, all of one batch together, and says for each item what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.api import JudgeReply, JudgeRequest, Message, Prompt, Sample
from rlhf_core.sdk import request_seed
from rlhf_plugin_datagen.makers import Estimate, Meter
from rlhf_plugin_datagen.principles import numbered
from rlhf_plugin_judge.pairwise import SYSTEM, Match, Outcome, compare
from rlhf_plugin_judge.rewards import Asking
from rlhf_plugin_judge.texts import AS_DATA, conversation, tagged
from rlhf_plugin_judge.verdict import Unusable, Verdict, ask_json
from rlhf_plugin_rubric.judged import shown, system_text
from rlhf_plugin_rubric.rubric import BadGrades, Rubric


@dataclass(frozen=True)
class Item:
    """A prompt to make a row of, and for grades the response if there is one.

    Example:
        Item("pets/17", ({"role": "user", "content": "Which pet does Ann have?"},))
    """

    id: str
    prompt: tuple[Message, ...]
    completion: str | None = None


@dataclass(frozen=True)
class Made:
    """What came of an item: a row, or why there is none."""

    item: Item
    row: Mapping[str, Any] | None = None
    left_out: str = ""
    """Reason for which what was made cannot be used; made again it would be the same."""
    detail: str = ""


@dataclass(frozen=True)
class Settings:
    """What all kinds share."""

    principles: tuple[str, ...]
    rubric: Rubric
    seed: int = 0
    max_tokens: int = 256
    """Of a response."""
    judge_tokens: int = 512
    """Of a judge's answer or critique."""
    temperature: float = 1.0
    """Of responses; judges answer at 0."""


Produce = Callable[[Sequence[Item], Meter, Meter, Settings], list[Made]]
Foresee = Callable[[Item, Estimate, Estimate, Settings], None]


@dataclass(frozen=True)
class Kind:
    """One kind of data: how it is made, and what making it takes."""

    produce: Produce
    foresee: Foresee


BETTER = """The better one keeps these principles better:
{principles}
Say in one sentence why, and name the principle."""

GUIDE = """You answer by these principles:
{principles}"""

CRITIQUE = """You criticise a draft of a response to a conversation by these principles:
{principles}

{data}
Say briefly, principle by principle where one is not kept, what is wrong and what to change. If nothing is, say so."""

REVISE = """You revise a draft of a response to a conversation, following a critique and these principles:
{principles}

{data}
Write the revised response alone, as it will be sent: no preface, no remark on the draft."""


def preferences(items: Sequence[Item], generator: Meter, judge: Meter, settings: Settings) -> list[Made]:
    """Two responses each; a judge with the constitution says which is better and why, asked in both orders.

    A verdict that changes with the order, or a tie, is no preference (Bai et al. 2022; the swap: Zheng et al. 2023).
    """
    replies = generator.ask(
        [
            JudgeRequest(
                f"{item.id}#response{k}",
                item.prompt,
                max_tokens=settings.max_tokens,
                temperature=settings.temperature,
                seed=request_seed(settings.seed, "data", item.id, k),
            )
            for item in items
            for k in range(2)
        ]
    )
    texts = {item.id: [said(r) for r in replies[2 * i : 2 * i + 2]] for i, item in enumerate(items)}
    cut = {item.id for i, item in enumerate(items) if any(was_cut(r, settings) for r in replies[2 * i : 2 * i + 2])}
    found = {item.id: unusable(texts[item.id]) or ("cut_off" if item.id in cut else "") for item in items}
    asked = [item for item in items if not found[item.id] and item.id not in generator.unanswered]
    matches = [Match(f"{item.id}#pair", item.prompt, *texts[item.id]) for item in asked]
    criterion = BETTER.format(principles=numbered(settings.principles))
    outcomes = compare(judge, matches, criterion, Asking(max_tokens=settings.judge_tokens))
    judged = {item.id: outcome for item, outcome in zip(asked, outcomes)}
    return [
        _preference(item, texts[item.id], judged[item.id])
        if item.id in judged
        else Made(item, left_out=found[item.id], detail=" | ".join(texts[item.id]))
        for item in items
    ]


def _preference(item: Item, texts: Sequence[str], outcome: Outcome) -> Made:
    """The row of a comparison in both orders."""
    if outcome.share is None:
        return Made(item, left_out="judge_unusable", detail=outcome.detail)
    if outcome.share not in (0.0, 1.0):
        tie = outcome.share == 0.5 and not outcome.flipped
        return Made(item, left_out="tie" if tie else "order_decides", detail=" / swapped: ".join(outcome.why))
    chosen, rejected = texts if outcome.share == 1.0 else texts[::-1]
    return Made(item, {"chosen": chosen, "rejected": rejected, "why": outcome.why[0]})


def demonstrations(items: Sequence[Item], generator: Meter, judge: Meter, settings: Settings) -> list[Made]:
    """Draft, critique, revision under the constitution; the revision is the completion."""
    drafts = ask_texts(generator, items, "draft", settings, lambda item: (GUIDE, item.prompt))
    critiques = ask_texts(
        judge,
        [i for i in items if drafts.get(i.id)],
        "critique",
        settings,
        lambda item: (
            CRITIQUE,
            question(
                tagged("conversation", conversation(item.prompt)),
                tagged("draft", drafts[item.id]),
                "Criticise the draft.",
            ),
        ),
        limit=settings.judge_tokens,
    )
    criticised = [i for i in items if critiques.get(i.id)]
    cut = set[str]()
    revised = ask_texts(
        generator,
        criticised,
        "revision",
        settings,
        lambda item: (
            REVISE,
            question(
                tagged("conversation", conversation(item.prompt)),
                tagged("draft", drafts[item.id]),
                tagged("critique", critiques[item.id]),
                "Revise the draft.",
            ),
        ),
        cut=cut,
    )
    made: list[Made] = []
    for item in items:
        stages = {"draft": drafts.get(item.id), "critique": critiques.get(item.id), "completion": revised.get(item.id)}
        empty = next((name for name, text in stages.items() if not text), None)
        reason = f"empty_{empty}" if empty else "cut_off" if item.id in cut else ""
        made.append(
            Made(item, left_out=reason)
            if reason
            else Made(item, {k: stages[k] for k in ("completion", "draft", "critique")})
        )
    return made


def ask_texts(
    maker: Meter,
    items: Sequence[Item],
    stage: str,
    settings: Settings,
    ask: Callable[[Item], tuple[str, tuple[Message, ...]]],
    limit: int | None = None,
    cut: set[str] | None = None,
) -> dict[str, str]:
    """One text per item; "" where there was no answer.

    Args:
        maker: who writes.
        items: what about.
        stage: names the request.
        settings: principles and sampling.
        ask: (system text with ``{principles}``, messages) of an item.
        limit: tokens of an answer; None is that of a response.
        cut: takes the ids of items whose text ends at the limit.
    """
    requests: list[JudgeRequest] = []
    for item in items:
        system, messages = ask(item)
        requests.append(
            JudgeRequest(
                f"{item.id}#{stage}",
                messages,
                system.format(principles=numbered(settings.principles), data=AS_DATA),
                limit or settings.max_tokens,
                settings.temperature if stage == "draft" else 0.0,
                request_seed(settings.seed, "data", item.id, stage),
            )
        )
    replies = maker.ask(requests)
    if cut is not None:
        cut |= {item.id for item, reply in zip(items, replies) if was_cut(reply, settings)}
    return {item.id: said(reply) for item, reply in zip(items, replies)}


def was_cut(reply: JudgeReply, settings: Settings) -> bool:
    """Whether a text of a response's length ends because there was no room for more: no example of how to end."""
    return reply.ok and reply.output_tokens >= settings.max_tokens


def grades(items: Sequence[Item], generator: Meter, judge: Meter, settings: Settings) -> list[Made]:
    """A grade for each criterion of the rubric, on its scale, and their weighted mean in [0, 1]."""
    bare = [item for item in items if item.completion is None]
    replies = generator.ask(
        [
            JudgeRequest(
                f"{item.id}#response",
                item.prompt,
                max_tokens=settings.max_tokens,
                temperature=settings.temperature,
                seed=request_seed(settings.seed, "data", item.id, 0),
            )
            for item in bare
        ]
    )
    texts = {i.id: i.completion for i in items if i.completion is not None}
    texts |= {item.id: said(reply) for item, reply in zip(bare, replies)}
    cut = {item.id for item, reply in zip(bare, replies) if was_cut(reply, settings)}
    asked = [item for item in items if texts[item.id].strip() and item.id not in cut]
    verdicts = ask_json(
        judge,
        [
            JudgeRequest(
                f"{item.id}#grade",
                question(shown(Sample(Prompt(item.id, item.prompt), texts[item.id]))),
                system_text(settings.rubric),
                settings.judge_tokens,
            )
            for item in asked
        ],
        lambda found: read_grades(found, settings.rubric),
    )
    found = {item.id: verdict for item, verdict in zip(asked, verdicts)}
    return [
        Made(item, left_out="cut_off") if item.id in cut else _graded(item, texts[item.id], found.get(item.id))
        for item in items
    ]


def _graded(item: Item, text: str, verdict: Verdict[Mapping[str, Any]] | None) -> Made:
    if verdict is None:
        return Made(item, left_out="empty_response")
    if verdict.value is None:
        return Made(item, left_out="judge_unusable", detail=verdict.detail)
    return Made(item, {"completion": text, **verdict.value})


def read_grades(found: dict[str, Any], rubric: Rubric) -> Mapping[str, Any]:
    """``grades`` on their scales, their weighted mean ``score`` in [0, 1], and ``why``.

    Raises:
        Unusable: they do not fit the rubric.
    """
    try:
        normalised = rubric.read(found.get("grades"))
    except BadGrades as error:
        raise Unusable(str(error)) from error
    return {
        "grades": {n: found["grades"][n] for n in rubric.names},
        "score": rubric.value(normalised),
        "why": str(found.get("why", "")).strip(),
    }


def question(*texts: str) -> tuple[Message, ...]:
    """One user turn of several pieces."""
    return ({"role": "user", "content": "\n\n".join(texts)},)


def said(reply: JudgeReply) -> str:
    """A reply's text without the white space around it; "" if there is none."""
    return (reply.text or "").strip()


def unusable(texts: Sequence[str]) -> str:
    """Why two responses make no pair, "" if they do."""
    if not all(texts):
        return "empty_response"
    return "identical_responses" if texts[0] == texts[1] else ""


def foresee_preferences(item: Item, generator: Estimate, judge: Estimate, settings: Settings) -> None:
    """Two responses, and two comparisons of the longest that they can be."""
    generator.add(length(item.prompt), settings.max_tokens, times=2)
    system = len(SYSTEM) + len(AS_DATA) + len(BETTER) + len(numbered(settings.principles))
    judge.add(length(item.prompt) + system + 8 * settings.max_tokens, settings.judge_tokens, times=2)


def foresee_demonstrations(item: Item, generator: Estimate, judge: Estimate, settings: Settings) -> None:
    """A draft, a critique of it, and a revision by both."""
    rules, prompt, draft = len(numbered(settings.principles)), length(item.prompt), 4 * settings.max_tokens
    generator.add(rules + len(GUIDE) + prompt, settings.max_tokens)
    judge.add(rules + len(CRITIQUE) + prompt + draft, settings.judge_tokens)
    generator.add(rules + len(REVISE) + prompt + draft + 4 * settings.judge_tokens, settings.max_tokens)


def foresee_grades(item: Item, generator: Estimate, judge: Estimate, settings: Settings) -> None:
    """A response if there is none, and its grades."""
    if item.completion is None:
        generator.add(length(item.prompt), settings.max_tokens)
    text = 4 * settings.max_tokens if item.completion is None else len(item.completion)
    judge.add(length(item.prompt) + len(system_text(settings.rubric)) + text, settings.judge_tokens)


def length(prompt: Sequence[Message]) -> int:
    """Characters of a conversation."""
    return sum(len(m["content"]) for m in prompt)


KINDS: Mapping[str, Kind] = {
    "preferences": Kind(preferences, foresee_preferences),
    "sft": Kind(demonstrations, foresee_demonstrations),
    "grades": Kind(grades, foresee_grades),
}
