"""Published rows under the core's column names. A row that does not fit is named with file and line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_core.data import DatasetError
from rlhf_plugin_verifiers.by_row.rows import reference_of
from rlhf_plugin_verifiers.maths.answer import boxed_answer
from rlhf_plugin_verifiers.maths.tags import R1_ZERO_PROMPT

Row = Mapping[str, Any]


class Adapted:
    """Rows of another source: ``convert`` returns a row in the core's names with ``reasoning`` (the solution up to its
    answer), or raises ``KeyError`` or ``ValueError``; ``prompt`` ``r1_zero`` puts both into that form,
    ``question_only`` the answer into a box."""

    def __init__(self, source: Any, convert: Callable[[Row], Row], prompt: str = "question") -> None:
        self.source, self.convert, self.prompt = source, convert, prompt
        self._questions: dict[tuple[str, int], str] = {}

    def rows(self, split: str) -> Sequence[Row]:
        return [self._row(row, split, n) for n, row in enumerate(self.source.rows(split))]

    def where(self, split: str, number: int) -> str:
        return self.source.where(split, number)

    def question(self, split: str, number: int) -> str:
        """What a row asks, without a prompt around it: which rows are held out follows from it."""
        return self._questions[split, number]

    def _row(self, row: Row, split: str, number: int) -> Row:
        try:
            converted = dict(self.convert(row))
        except (KeyError, ValueError) as error:
            why = f"it has no column {error}" if isinstance(error, KeyError) else str(error)
            raise DatasetError(
                "a row is not in the published form",
                where=self.where(split, number),
                why=f"{why}; its columns: {', '.join(sorted(map(str, row)))}",
                fix="choose dataset.name=jsonl and map dataset.columns, or fix the row",
            ) from error
        turns = converted["prompt"]
        last = turns[-1]["content"] if isinstance(turns, list | tuple) and turns else turns
        self._questions[split, number] = str(last)
        reasoning = converted.pop("reasoning", None)
        if self.prompt == "question_only" and reasoning is not None:
            converted["completion"] = f"{reasoning}\n\\boxed{{{converted['answer']}}}"
        return r1_zero_row(converted, reasoning) if self.prompt == "r1_zero" else converted


def r1_zero_row(row: Row, reasoning: str | None) -> Row:
    """A maths row for the R1-Zero prompt; ``reasoning`` None has no solution to imitate."""
    prompt = R1_ZERO_PROMPT.replace("{prompt}", row["prompt"])
    solution = {} if reasoning is None else {"completion": f"{reasoning} </think> <answer> {row['answer']} </answer>"}
    return {**row, "prompt": prompt, **solution}


def gsm8k_row(row: Row) -> Row:
    """``question`` and ``answer`` with ``#### X``; SFT imitates the solution without the calculator's marks."""
    solution, mark, answer = str(row["answer"]).rpartition("####")
    if not mark or not answer.strip():
        raise ValueError("'answer' does not end with '#### X'")
    reasoning = _without_marks(solution).strip()
    return {
        "prompt": row["question"],
        "answer": answer.strip().replace(",", ""),
        "completion": f"{reasoning}\nThe answer is {answer.strip()}.",
        "reasoning": reasoning,
    }


def _without_marks(solution: str) -> str:
    """Remove ``<<16-3-4=9>>``."""
    parts = solution.split("<<")
    return parts[0] + "".join(p.partition(">>")[2] for p in parts[1:])


def math_row(row: Row) -> Row:
    """``problem`` or ``question``; ``answer``, or the box of ``solution``."""
    answer = row.get("answer")
    if answer is None:
        answer = boxed_answer(str(row["solution"]))
    if answer is None:
        raise ValueError("'solution' holds no \\boxed{} answer")
    extra_columns = {k: row[k] for k in ("level", "subject", "type") if k in row}
    level = str(row.get("level")).removeprefix("Level ")  # MATH has "Level 3" where MATH-500 has 3
    extra_columns |= {"level": int(level)} if level.isdecimal() else {}
    solution = {"completion": row["solution"], "reasoning": str(row["solution"]).strip()} if "solution" in row else {}
    question = row["problem"] if "problem" in row else row["question"]
    return {"prompt": question, "answer": str(answer), **solution, **extra_columns}


def ifeval_row(row: Row) -> Row:
    """``prompt`` with its instructions; arguments that are None are left out."""
    kwargs = [{k: v for k, v in (arguments or {}).items() if v is not None} for arguments in row["kwargs"]]
    return {
        "prompt": row["prompt"],
        "instruction_id_list": list(row["instruction_id_list"]),
        "kwargs": kwargs,
        **({"id": row["key"]} if "key" in row else {}),
    }


def mbpp_row(row: Row) -> Row:
    """``prompt`` (or ``text``) and the asserts."""
    tests = [str(t) for t in row["test_list"]]
    if not tests:
        raise ValueError("'test_list' is empty")
    task = row["prompt"] if "prompt" in row else row["text"]
    setup = row.get("test_setup_code")
    imports = row.get("test_imports", [setup] if setup else [])
    return {
        "id": row["task_id"],
        "prompt": f"{task}\nYour code should pass these tests:\n\n" + "\n".join(tests),
        "test_list": tests,
        "test_imports": list(imports),
        "code": row["code"],
    }


def rlvr_row(row: Row) -> Row:
    """``messages`` (or ``prompt``) and ``ground_truth``, which becomes an answer or instructions; ``dataset`` and the
    further columns stay."""
    taken = ("messages", "prompt", "ground_truth", "key")
    return {
        **{k: v for k, v in row.items() if k not in taken},
        "prompt": row["messages"] if row.get("messages") else row["prompt"],
        **reference_of(row["ground_truth"]),
        **({"id": row["key"]} if row.get("key") is not None else {}),
    }


def apps_row(row: Row) -> Row:
    """``question``, ``starter_code`` and where the input comes from, as the published prompts say it."""
    tests = json.loads(row["input_output"]) if isinstance(row["input_output"], str) else row["input_output"]
    starter = str(row.get("starter_code") or "").strip()
    by_call = isinstance(tests, Mapping) and tests.get("fn_name")
    use = "Use Call-Based format" if by_call else "Use Standard Input format"
    number = row.get("problem_id", row.get("id"))
    return {
        "prompt": "\n".join(part for part in (str(row["question"]).strip(), starter, use) if part),
        "input_output": tests,
        **{k: row[k] for k in ("difficulty", "url") if k in row},
        **({"id": number} if number is not None else {}),
    }
