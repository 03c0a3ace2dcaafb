"""Grades by a rubric, of responses that are given or generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data import Prompt
from rlhf_core.rewards import JudgeRequest, Sample
from rlhf_plugin_datagen.items import (
    FRAME,
    Item,
    ItemResult,
    Settings,
    length,
    question,
    reply_text,
    response_request,
    was_cut,
)
from rlhf_plugin_datagen.usage import Estimate, Meter
from rlhf_plugin_judge.verdict import Unusable, Verdict, ask_json
from rlhf_plugin_rubric.judge_reward import shown, system_text
from rlhf_plugin_rubric.rubric import BadGrades, Rubric


def grades(items: Sequence[Item], generator: Meter, judge: Meter, settings: Settings) -> list[ItemResult]:
    """A grade for each criterion of the rubric, on its scale, and their weighted mean in [0, 1]."""
    texts, cut_ids = responses(items, generator, settings)
    gradable = [item for item in items if texts[item.id].strip() and item.id not in cut_ids]
    requests = [grade_request(item, texts[item.id], settings) for item in gradable]
    verdicts = ask_json(judge, requests, lambda answer: read_grades(answer, settings.rubric))
    verdict_of = {item.id: verdict for item, verdict in zip(gradable, verdicts)}
    results: list[ItemResult] = []
    for item in items:
        if item.id in cut_ids:
            results.append(ItemResult(item, left_out="cut_off"))
        else:
            results.append(graded(item, texts[item.id], verdict_of.get(item.id)))
    return results


def responses(items: Sequence[Item], generator: Meter, settings: Settings) -> tuple[dict[str, str], set[str]]:
    texts = {item.id: item.completion for item in items if item.completion is not None}
    without = [item for item in items if item.completion is None]
    replies = generator.ask([response_request(item, f"{item.id}#response", 0, settings) for item in without])
    texts |= {item.id: reply_text(reply) for item, reply in zip(without, replies)}
    return texts, {item.id for item, reply in zip(without, replies) if was_cut(reply, settings)}


def grade_request(item: Item, text: str, settings: Settings) -> JudgeRequest:
    sample = Sample(Prompt(item.id, item.prompt), text)
    return JudgeRequest(
        f"{item.id}#grade", question(shown(sample)), system_text(settings.rubric), settings.judge_tokens
    )


def graded(item: Item, text: str, verdict: Verdict[Mapping[str, Any]] | None) -> ItemResult:
    if verdict is None:
        return ItemResult(item, left_out="empty_response")
    if verdict.value is None:
        return ItemResult(item, left_out="judge_unusable", detail=verdict.detail)
    return ItemResult(item, {"completion": text, **verdict.value})


def read_grades(answer: dict[str, Any], rubric: Rubric) -> Mapping[str, Any]:
    """``grades`` on their scales, their weighted mean ``score`` in [0, 1], and ``why``."""
    try:
        normalised = rubric.read(answer.get("grades"))
    except BadGrades as error:
        raise Unusable(str(error)) from error
    return {
        "grades": {name: answer["grades"][name] for name in rubric.names},
        "score": rubric.value(normalised),
        "why": str(answer.get("why", "")).strip(),
    }


def estimate_grades(item: Item, generator: Estimate, judge: Estimate, settings: Settings) -> None:
    if item.completion is None:
        generator.add(length(item.prompt), settings.max_tokens)
    text = 4 * settings.max_tokens if item.completion is None else len(item.completion)
    judge.add(FRAME + length(item.prompt) + len(system_text(settings.rubric)) + text, settings.judge_tokens)
