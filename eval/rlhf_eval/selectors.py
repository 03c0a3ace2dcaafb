"""Scores to choose the best of N by: rewards of any kind, and judges that give a mark."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.cli import context_of
from rlhf_core.config import BuildContext, ComponentConfig, ConfigError, RlhfError, load_yaml
from rlhf_core.data import Prompt, message_text, read_jsonl
from rlhf_core.models import ModelConfig, model_paths, weights_digest
from rlhf_core.rewards import JudgeReply, JudgeRequest, Sample
from rlhf_core.rollouts import FinishReason, Turn, TurnStatus
from rlhf_eval.store import ResultFolder
from rlhf_plugin_judge.delimiters import fence_untrusted

Row = Mapping[str, Any]
Say = Callable[[str], None]
JUDGE_SYSTEM = (
    "You grade answers. Given a question and an answer, reply with one number from 0 (wrong or useless) to "
    "10 (right and complete), and nothing else."
)
JUDGE_BATCH = 64
PART = 256
"""Completions scored between two writes."""


@dataclass(frozen=True)
class Selector:
    """One way to choose among samples."""

    name: str
    kind: str
    """``reward`` or ``judge``."""
    config: ComponentConfig


def parse_selector(text: str, ctx: BuildContext) -> Selector:
    """``FOLDER`` of a reward model or ensemble, ``reward:NAME``, ``judge:NAME``, or a YAML mapping after the colon."""
    text = ModelConfig(path=text).path  # what the name of a model stands for; other texts stay
    folder = Path(text).expanduser()
    if folder.is_dir():
        which = "ensemble" if (folder / "ensemble.json").is_file() else "bradley_terry"
        parent = folder.name if folder.name not in ("final", "model") else f"{folder.parent.name}-{folder.name}"
        return Selector(parent, "reward", ctx.registry.config("reward", which, {"path": text}))
    kind, colon, options_text = text.partition(":")
    if not colon or kind not in ("reward", "judge"):
        raise ConfigError(
            f"--best-by '{text}' is neither a folder nor reward:NAME or judge:NAME",
            fix="for example --best-by runs/rm/final, or --best-by 'judge:{name: anthropic, model: M}'",
        )
    try:
        options = load_yaml(options_text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--best-by '{text}' is not valid YAML", why=str(error)) from error
    options = {"name": options} if isinstance(options, str) else options
    if not isinstance(options, dict) or "name" not in options:
        raise ConfigError(f"--best-by '{text}' names no {kind}", fix=f"--best-by {kind}:NAME")
    name = str(options.pop("name"))
    return Selector(name, kind, ctx.registry.config(kind, name, options))


def score(
    selector: Selector, folder: ResultFolder, rows: Sequence[Row], ctx: BuildContext, say: Say = lambda text: None
) -> dict[tuple[str, int], float | None]:
    """Score every row once, ``PART`` rows at a time, into ``scores/NAME.jsonl``; errors and timeouts again."""
    dumped = selector.config.model_dump(mode="json")
    weights = [weights_digest(path) for path in model_paths(dumped)]
    scorer_digest = hashlib.sha256(json.dumps([dumped, weights], sort_keys=True).encode()).hexdigest()[:16]
    file = f"scores/{re.sub(r'[^A-Za-z0-9_.-]', '-', selector.name)}.jsonl"
    scored_rows: dict[tuple[str, int], Row] = {}
    for row in read_jsonl(folder.path / file):
        if row["by"] == scorer_digest and row["status"] not in ("error", "timeout"):
            scored_rows[_key(row)] = row
    todo = [row for row in rows if _key(row) not in scored_rows]
    done = 0
    for part in _scored(selector, todo, ctx) if todo else ():
        scored_rows |= {_key(row): {**row, "by": scorer_digest} for row in part}
        folder.write(file, [scored_rows[_key(row)] for row in rows if _key(row) in scored_rows])
        done += len(part)
        say(f"{selector.name}: {done} of {len(todo)} completions scored")
    scored = [scored_rows[_key(row)] for row in rows]
    if not any(row["score"] is not None for row in scored):
        raise RlhfError(
            f"{selector.kind} '{selector.name}' scored none of {len(rows)} completions",
            why=f"first: {scored[0]['status']}: {scored[0]['detail']}",
            fix="fix it, or leave it out",
        )
    return {_key(row): row["score"] for row in scored}


def _key(row: Row) -> tuple[str, int]:
    return row["id"], row["sample"]


def _scored(selector: Selector, rows: Sequence[Row], ctx: BuildContext) -> Iterator[list[dict[str, Any]]]:
    built = selector.config.build(context_of(ctx.registry, seed=ctx.seed, policy=ctx.policy))
    score_part = _marks if selector.kind == "judge" else _scores
    try:
        for at in range(0, len(rows), PART):
            part = rows[at : at + PART]
            results = score_part(built, part)
            yield [{"id": r["id"], "sample": r["sample"], **result} for r, result in zip(part, results, strict=True)]
    finally:
        if callable(getattr(built, "close", None)):
            built.close()


def _scores(reward: Any, rows: Sequence[Row]) -> list[dict[str, Any]]:
    scores = reward.score([_sample(row) for row in rows])
    return [{"score": s.value, "status": s.status.value, "detail": s.detail} for s in scores]


def _sample(row: Row) -> Sample:
    prompt = Prompt(row["id"], tuple(row["prompt"]), row.get("answer"), tools=tuple(row.get("tools", ())))
    turns = [
        Turn(tuple(t["span"]), t["role"], t["message"], t["score"], TurnStatus(t["status"]), t["seconds"])
        for t in row.get("turns", ())
    ]
    return Sample(
        prompt, row["completion"], FinishReason(row.get("finish_reason", FinishReason.EOS)), trajectory=tuple(turns)
    )


def _marks(judge: Any, rows: Sequence[Row]) -> list[dict[str, Any]]:
    requests = [
        JudgeRequest(f"{r['id']}#{r['sample']}", ({"role": "user", "content": _question(r)},), JUDGE_SYSTEM, 16)
        for r in rows
    ]
    marks: list[dict[str, Any]] = []
    for at in range(0, len(requests), JUDGE_BATCH):
        marks += [_mark(reply) for reply in judge.ask(requests[at : at + JUDGE_BATCH])]
    return marks


def _question(row: Row) -> str:
    sample = _sample(row)
    response = sample.completion if sample.call is None else message_text(sample.call)
    blocks = fence_untrusted(("response", response), conversation=sample.before)
    return f"{blocks}\n\nMark from 0 to 10:"


def _mark(reply: JudgeReply) -> dict[str, Any]:
    if not reply.ok or reply.text is None:
        return {"score": None, "status": reply.status.value, "detail": reply.detail}
    number = re.search(r"\d+(?:\.\d+)?", reply.text)
    if number is None or float(number[0]) > 10:
        return {"score": None, "status": "missing", "detail": f"no mark in {reply.text[:80]!r}"}
    return {"score": float(number[0]), "status": "ok", "detail": ""}
