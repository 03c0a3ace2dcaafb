"""At the end the model is asked what it learnt; the report has its own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.rewards import JudgeReply, JudgeRequest
from rlhf_plugin_discover.archive import Proposal
from rlhf_plugin_discover.loop import Discovery, with_reply
from rlhf_plugin_discover.report import NO_MODEL, quoted, rises

SYSTEM = "You look back at a search for better constructions. Answer in plain prose, honestly, in at most 200 words."
TOKENS = 512


def reflection(search: Discovery) -> str:
    """The model's own words, quoted; or why there are none: nothing is made up in its place."""
    if not any(p.reply is not None for p in search.journal.proposals):
        return NO_MODEL.replace("No model drove this search", "The model gave no answer in this search")
    if search.affordable() < 1:
        return "The budget was used up before the model could be asked for one."
    request = question(search)
    reply: JudgeReply = search.judge.ask([request])[0]
    best, number = search.archive.best[0].id, len(search.journal.rounds)
    unanswered = Proposal("reflection", number, 0, best, (), list(request.messages), None)
    search.journal.reflect(with_reply(unanswered, reply))
    if reply.text is None or not reply.text.strip():
        return f"The model was asked for one and gave none ({reply.status.value}: {reply.detail or 'an empty answer'})."
    return (
        f"Asked what it learnt, the model (judge `{search.config.judge.name}`) wrote:\n\n{quoted(reply.text.strip())}"
    )


def question(search: Discovery) -> JudgeRequest:
    best, unit = search.archive.best[0], search.task.settings.unit
    facts = "\n".join(rises(search.journal, search.archive))
    turn: Mapping[str, Any] = {
        "role": "user",
        "content": f"{search.task.question}\n\nYour search is over. The best program scored "
        f"{best.worth if best.valid else 'nothing'} {unit}:\n\n{facts}\n\nWhat did you try, what worked best, what "
        "failed, and what would you try next?",
    }
    config = search.config
    return JudgeRequest(
        f"{search.task.name}/reflection",
        (turn,),
        SYSTEM,
        min(TOKENS, config.max_tokens),
        config.temperature,
        config.seed,
    )
