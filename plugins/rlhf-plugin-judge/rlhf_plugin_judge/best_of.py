"""Which of several responses is best: rows with one right response and several wrong ones, as RewardBench 2's.

Every place holds the right response equally often, in each subset, in an order drawn by the seed: a judge that likes a
place gains nothing, and a second run asks the same.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli import context_of, emit_json, open_registry, table
from rlhf_core.data import DatasetError, Message

if TYPE_CHECKING:
    from rlhf_core.rewards import Judge, JudgeRequest
    from rlhf_plugin_judge.rewards import Asking

LETTERS = "ABCDEFGHIJ"
SYSTEM = """You compare {count} responses of an assistant to the same conversation. {criterion}
Neither their order nor their length says which is best.
Think in one or two sentences. Then write one JSON object and nothing after it:
{{"why": "...", "best": "A"}}
where "best" is one of {letters}."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A question: the right response stands at ``place``."""

    id: str
    prompt: tuple[Message, ...]
    responses: tuple[str, ...]
    place: int
    subset: str = ""


def choices_of(rows: Sequence[tuple[str, tuple[Message, ...], Mapping[str, Any], str]], seed: int) -> list[Choice]:
    """Questions of (id, prompt, row, where), in order; rows with several right responses are not asked.

    Raises:
        DatasetError: a row without a list of ``chosen`` and of ``rejected`` texts.
    """
    by_subset: dict[str, list[int]] = defaultdict(list)
    for n, (_, _, row, where) in enumerate(rows):
        texts = [*_texts(row, "chosen", where), *_texts(row, "rejected", where)]
        if len(row["chosen"]) == 1 and len(texts) <= len(LETTERS):
            by_subset[str(row.get("subset") or "")].append(n)
    choices: dict[int, Choice] = {}
    for subset, numbers in by_subset.items():
        draw = random.Random(f"{seed}/{subset}")
        for rank, n in enumerate(draw.sample(numbers, len(numbers))):
            name, prompt, row, _ = rows[n]
            others = draw.sample(list(row["rejected"]), len(row["rejected"]))
            place = rank % (len(others) + 1)
            choices[n] = Choice(name, prompt, (*others[:place], row["chosen"][0], *others[place:]), place, subset)
    return [choices[n] for n in sorted(choices)]


def _texts(row: Mapping[str, Any], column: str, where: str) -> list[str]:
    value = row.get(column)
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise DatasetError(
            f"column '{column}' is not a list of texts",
            where=where,
            why=f"got {str(value)[:60]}",
            fix="rows as RewardBench 2's; for one chosen and one rejected text: rlhf judge agreement",
        )
    return value


def questions(choices: Sequence[Choice], criterion: str, asking: Asking) -> list[JudgeRequest]:
    """One question each."""
    from rlhf_plugin_judge.delimiters import fence_untrusted

    requests: list[JudgeRequest] = []
    for choice in choices:
        letters = LETTERS[: len(choice.responses)]
        system = SYSTEM.format(count=len(letters), criterion=criterion, letters=", ".join(letters))
        blocks = [(f"response_{letter.lower()}", text) for letter, text in zip(letters, choice.responses)]
        requests.append(asking.request(choice.id, fence_untrusted(*blocks, conversation=choice.prompt), system))
    return requests


def best_of(judge: Judge, choices: Sequence[Choice], criterion: str, asking: Asking) -> dict[str, Any]:
    """Ask. ``accuracy`` and ``subsets`` are over the questions with an answer; ``as_published`` counts one without as a
    guess, as the benchmark does. ``by_place`` is the accuracy where the right response stands there."""
    from rlhf_core.rewards import ScoreStatus
    from rlhf_plugin_judge.verdict import Unusable, ask_json

    def letter(answer: dict[str, Any]) -> str:
        said = str(answer.get("best", "")).strip().upper().removeprefix("RESPONSE ")
        if len(said) != 1 or said not in LETTERS:
            raise Unusable('"best" must be one letter')
        return said

    asked = ask_json(judge, questions(choices, criterion, asking), letter, asking.repair)
    verdicts = [
        replace(v, value=None, status=ScoreStatus.ERROR, detail=f"there is no response {v.value}")
        if v.value is not None and v.value not in LETTERS[: len(c.responses)]
        else v
        for c, v in zip(choices, asked)
    ]
    right: dict[str, list[bool]] = defaultdict(list)
    at: dict[str, list[bool]] = defaultdict(list)
    for choice, verdict in zip(choices, verdicts):
        if verdict.value is not None:
            hit = verdict.value == LETTERS[choice.place]
            right[choice.subset].append(hit)
            at[LETTERS[choice.place]].append(hit)
    hits = [hit for of in right.values() for hit in of]
    guesses = sum(1 / len(c.responses) for c, v in zip(choices, verdicts) if v.value is None)
    return {
        "count": len(choices),
        "judged": len(hits),
        "accuracy": sum(hits) / len(hits) if hits else None,
        "as_published": (sum(hits) + guesses) / len(choices),
        "subsets": {name: sum(of) / len(of) for name, of in sorted(right.items())},
        "by_place": {place: sum(of) / len(of) for place, of in sorted(at.items())},
        "named": dict(sorted(Counter(v.value for v in verdicts if v.value).items())),
        "missing": dict(Counter(v.status.value for v in verdicts if v.value is None)),
        "cost_usd": sum(v.cost_usd for v in verdicts),
    }


@click.command("best-of", context_settings={"show_default": True})
@click.option("--judge", "name", default="anthropic", metavar="NAME", help="Which judge.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One of its settings. Repeatable.")
@click.option("--dataset", required=True, metavar="D", help="Rows as RewardBench 2's: chosen and rejected are lists.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N rows.")
@click.option("--max-tokens", type=click.IntRange(1), default=512, help="Longest answer.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="Of the places, and for judges that draw.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def command(
    name: str, settings: tuple[str, ...], dataset: str, limit: int | None, as_json: bool, **options: int
) -> None:
    """How often a judge names the right one of four responses (RewardBench 2). Exit code 1 if it judged none.

    \b
    rlhf judge best-of --judge local --set model.path=Qwen/Qwen3-4B --dataset reward-bench-2.jsonl
    """
    from rlhf_core.config import parse_settings
    from rlhf_plugin_judge.grading import close_judge
    from rlhf_plugin_judge.rewards import Asking, JudgeRewardConfig

    registry = open_registry()
    config = registry.config("judge", name, parse_settings(settings))
    ctx = context_of(registry, seed=options["seed"], dataset={"name": dataset})
    rows = [
        (
            f"{source.label}/{record.row.get('id', record.number)}",
            source.reader.prompt(record),
            record.row,
            record.where,
        )
        for source in ctx.datasets.sources
        for record in source.records("pairs", "train", Counter())
    ][:limit]
    choices = choices_of(rows, options["seed"])
    if not choices:
        raise DatasetError("no row has one right response", where=dataset, fix="rate Ties: rlhf reward evaluate")
    config.preflight(ctx)
    judge = config.build(ctx)
    try:
        asking = Asking(max_tokens=options["max_tokens"], seed=options["seed"])
        result = best_of(judge, choices, str(JudgeRewardConfig.model_fields["criterion"].default), asking)
    finally:
        close_judge(judge)
    result = {"judge": name, **result, "not_asked": len(rows) - len(choices)}
    emit_json(result) if as_json else show(result)
    raise SystemExit(0 if result["judged"] else 1)


def show(result: Mapping[str, Any]) -> None:
    missing = "".join(f", {count} {status}" for status, count in result["missing"].items())
    click.echo(f"judged {result['judged']} of {result['count']} rows{missing}; {result['not_asked']} not asked")
    if result["judged"]:
        rows = [*result["subsets"].items(), ("all", result["accuracy"]), ("all, as published", result["as_published"])]
        table(("subset", "right"), ((title, f"{value:.3f}") for title, value in rows))
        places = result["by_place"].items()
        table(("right response at", "right", "named"), ((p, f"{v:.3f}", result["named"].get(p, 0)) for p, v in places))
    click.echo(f"cost {result['cost_usd']:.6f} USD")
