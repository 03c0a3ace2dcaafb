"""A generative reward model: a policy that is trained to compare (Mahan et al. 2024, GenRM), in a short form.

It is asked in JSON, in which no response can end its own text, and answers A or B after any reasoning. `rlhf judge
prompts` makes its training rows of labelled pairs, verifier ``verdict`` is its reward, and ``asking.form=short`` asks
it as a judge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from rlhf_core.data import Message, message_text
from rlhf_core.rewards import VerifierConfig

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_core.data import Prompt
    from rlhf_core.rewards import Sample, Score

_ANSWER = re.compile(r"\W*(?:(?:response|answer|better)\W+)?([AB])\W*", re.IGNORECASE)


def short_question(prompt: Sequence[Message], first: str, second: str) -> str:
    """What the model is asked; ``first`` is A."""
    turns = [message_text(m) if m["role"] == "user" else f"{m['role']}: {message_text(m)}" for m in prompt]
    question = turns[0] if len(turns) == 1 else turns
    return json.dumps({"question": question, "A": first, "B": second}, ensure_ascii=False) + "\nBetter, A or B?"


def short_answer(text: str) -> str | None:
    """``A`` or ``B``, which stands alone after the reasoning; None of any other text.

    Example:
        >>> short_answer("<think>B errs.</think> A."), short_answer("Both.")
        ('A', None)
    """
    said = _ANSWER.fullmatch(text.rpartition("</think>")[2])
    return said[1].upper() if said else None


class VerdictConfig(VerifierConfig):
    """Whether a policy that compares two responses names the better one: 1.0, or 0.0, also for what is no verdict; part
    ``format`` says whether it is one. Rows come from `rlhf judge prompts`."""

    name: str = "verdict"
    component: ClassVar[str] = "rlhf_plugin_judge.generative:VerdictVerifier"
    needs_answer: ClassVar[bool] = True

    def check_prompt(self, prompt: Prompt) -> str | None:
        """The reference is the better response's letter."""
        return None if prompt.answer in ("A", "B", None) else f"the answer is {prompt.answer!r}, not A or B"


class VerdictVerifier:
    """See :class:`VerdictConfig`."""

    def __init__(self, config: VerdictConfig, ctx: BuildContext | None = None) -> None: ...

    def verify(self, sample: Sample) -> Score:
        """Compare the verdict with the label."""
        from rlhf_core.rewards import Score, ScoreStatus

        if sample.prompt.answer is None:
            return Score.failed(ScoreStatus.MISSING, "it has no label")
        said = short_answer(sample.completion)
        return Score(float(said == sample.prompt.answer), {"format": float(said is not None)})


def rows_of(pairs: Sequence[Any]) -> list[dict[str, Any]]:
    """Two rows of each pair, one in each order, so that no place is right more often."""
    rows: list[dict[str, Any]] = []
    for pair in pairs:
        for order, texts in (("ab", (pair.chosen, pair.rejected)), ("ba", (pair.rejected, pair.chosen))):
            better = "A" if order == "ab" else "B"
            question = short_question(pair.prompt, *texts)
            rows.append({"id": f"{pair.id}:{order}", "prompt": question, "answer": better, "completion": better})
    return rows


@click.command(context_settings={"show_default": True})
@click.option("--dataset", required=True, metavar="D", help="Pairs with labels: chosen and rejected.")
@click.option("--split", type=click.Choice(("heldout", "train")), default="train", help="Which of its pairs.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N pairs.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The rows, JSON lines.")
def prompts(dataset: str, split: str, limit: int | None, out: Path) -> None:
    """Write labelled pairs as prompts for a policy that is to compare them, each in both orders.

    \b
    rlhf judge prompts --dataset pairs.jsonl --out verdicts.jsonl
    rlhf train --algo sft --dataset verdicts.jsonl --run-dir runs/form --set trainer.max_steps=20
    rlhf train --algo grpo --model runs/form --dataset verdicts.jsonl --set 'reward={name: verifier, verifier: verdict}'
    """
    from rlhf_core.cli import check_output, context_of, open_registry
    from rlhf_core.config import ConfigError
    from rlhf_core.data import write_text

    check_output(out, *([dataset] if Path(dataset).is_file() else []), option="--out")
    pairs = context_of(open_registry(), dataset={"name": dataset}).datasets.pairs(split)[:limit]
    if not pairs:
        raise ConfigError(f"'{dataset}' has no {split} pairs", fix="--split train, or another --dataset")
    rows = rows_of(pairs)
    write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    click.echo(f"{len(rows)} rows of {len(pairs)} pairs: {out}")
