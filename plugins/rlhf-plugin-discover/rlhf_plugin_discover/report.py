"""``report.md``: methodology, prompts, result and reflection of a discovery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rlhf_plugin_discover.archive import START, Archive, Journal, Proposal, Verdict
from rlhf_plugin_discover.config import DiscoverConfig
from rlhf_plugin_discover.conversation import SYSTEM

SHOWN = 3000
"""Characters of a text on the page."""
NO_MODEL = "No model drove this search, so nobody reflects on it."


def in_order(journal: Journal) -> list[Proposal]:
    return sorted(journal.proposals, key=lambda proposal: (proposal.round, proposal.slot))


def report(
    summary: Mapping[str, Any], config: DiscoverConfig, journal: Journal, archive: Archive, reflection: str
) -> str:
    model: Any = getattr(config.judge, "model", "")
    model = str(getattr(model, "path", model)).rpartition("/")[2]
    judge = f"`{config.judge.name}`" + f" (model {model})" * bool(model)
    budget = ", ".join(f"{k} {v:g}" for k, v in config.budget if v is not None)
    return page(
        summary,
        methodology=f"{config.samples} conversations side by side with judge {judge} at temperature "
        f"{config.temperature:g}, seed {config.seed}; each shows the best program it builds on and the last "
        f"{config.history} failed attempts with their exact verdicts. Budget: {budget}. {summary['rounds']} rounds, "
        f"{summary['proposals']} proposals, {summary['valid']} of them valid, {summary['calls']} calls, "
        f"{summary['cost_usd']:.4f} USD, {summary['seconds']} s.",
        prompts=prompts(journal, archive),
        result="\n".join(rises(journal, archive)),
        reflection=reflection,
    )


def page(summary: Mapping[str, Any], *, methodology: str, prompts: str, result: str, reflection: str) -> str:
    """The four sections, of a model's search or of one without."""
    began = f"Began with {score_text(summary['start'])}. " if "start" in summary else ""
    return (
        f"# {summary['task']}: {score_text(summary['best'])} {summary['unit']}\n\n"
        f"## Methodology\n\n{methodology} Programs ran in: {summary['isolation']}.\n\n"
        f"## Prompts\n\n{prompts}\n\n"
        f"## Result\n\n{began}Ended because {summary['ended']}. The verifier judged `best.py` outside of the program's "
        f"process: {score_text(summary['best'])} {summary['unit']}.\n\n{result}\n\n"
        f"## Reflection\n\n{reflection}\n"
    )


def prompts(journal: Journal, archive: Archive) -> str:
    """The first question, and what was said before and after the largest rise and the first failure."""
    proposals = in_order(journal)
    if not proposals:
        return "None was asked."
    parts = [("System", SYSTEM), ("First question", str(proposals[0].messages[-1]["content"]))]
    rise = max(proposals, key=lambda p: gained(p, archive))
    if gained(rise, archive) > 0:
        parts += exchange("The largest rise", rise, archive)
    failed = next((p for p in proposals if p.reply is not None and archive.verdicts[p.id].wrong), None)
    if failed is not None:
        parts += exchange("The first failure", failed, archive)
    return "\n\n".join(f"**{title}:**\n\n{quoted(text)}" for title, text in parts)


def exchange(title: str, proposal: Proposal, archive: Archive) -> list[tuple[str, str]]:
    verdict = archive.verdicts[proposal.id]
    said = verdict.wrong or f"valid, {verdict.worth:g}"
    return [
        (f"{title}, asked ({proposal.id})", str(proposal.messages[-1]["content"])),
        (f"{title}, answered", proposal.reply or ""),
        (f"{title}, verdict", said),
    ]


def gained(proposal: Proposal, archive: Archive) -> float:
    """How much an attempt added to the one it built on; minus infinity where that is no number."""
    after, before = (archive.verdicts.get(name) for name in (proposal.id, proposal.parent))
    if after is None or before is None or not (after.valid and before.valid):
        return float("-inf")
    return after.worth - before.worth


def rises(journal: Journal, archive: Archive) -> list[str]:
    """A table of attempts that were the best so far, and the commonest errors."""
    lines, top = ["| attempt | built on | score |", "|---|---|---|"], archive.verdicts[START].worth
    for proposal in in_order(journal):
        verdict = archive.verdicts.get(proposal.id)
        if verdict is not None and verdict.worth > top:
            top = verdict.worth
            lines.append(f"| {proposal.id} | {proposal.parent} | {verdict.worth:g} |")
    if len(lines) == 2:
        lines = ["No attempt was better than the program it began with."]
    errors = Counter(last_line(v) for v in journal.verdicts if v.wrong)
    wrong = [f"- {count} x {text}" for text, count in errors.most_common(5)]
    return [*lines, *(["", "What was wrong most often:", "", *wrong] if wrong else [])]


def last_line(verdict: Verdict) -> str:
    return verdict.wrong.splitlines()[-1][:120]


def quoted(text: str) -> str:
    """As a Markdown quotation, cut where it is long."""
    shown = text if len(text) <= SHOWN else text[:SHOWN] + " [cut]"
    return "\n".join(f"> {line}" for line in shown.splitlines() or [""])


def score_text(score: float | None) -> str:
    """Example: ``438``, or ``nothing valid``."""
    return "nothing valid" if score is None else f"{score:g}"
