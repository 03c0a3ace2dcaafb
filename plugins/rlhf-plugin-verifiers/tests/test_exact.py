"""Exact strings, letters, patterns and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from rlhf_core.rewards import Sample, ScoreStatus, VerifierConfig
from rlhf_plugin_verifiers.exact.config import (
    AnswerTagsConfig,
    ChoiceConfig,
    ExactConfig,
    JsonSchemaConfig,
    RegexConfig,
)
from rlhf_testing import check_verifier

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    "config",
    [
        ExactConfig(),
        ExactConfig(mode="lenient"),
        AnswerTagsConfig(),
        AnswerTagsConfig(mode="lenient"),
        ChoiceConfig(),
        ChoiceConfig(mode="strict"),
        RegexConfig(pattern=r"\d+"),
        RegexConfig(pattern="(a+)"),
        JsonSchemaConfig(definition=SCHEMA),
    ],
    ids=lambda c: f"{c.name}-{c.mode}",
)
def test_conformance(config: VerifierConfig) -> None:
    check_verifier(config)


@pytest.mark.parametrize(
    ("config", "answer", "text", "format_and_right"),
    [
        (ExactConfig(), "New York", " new  york. ", (1, 1)),
        (ExactConfig(), "New York", "It is New York", (1, 0)),
        (ExactConfig(ignore_case=False), "New York", "new york", (1, 0)),
        (ExactConfig(ignore_punctuation=False), "New York", "New York.", (1, 0)),
        (ExactConfig(), "New York", "", (0, 0)),
        (ExactConfig(), "New York", '**"New York".**', (1, 1)),
        (ExactConfig(), "-5", "5", (1, 0)),
        (ExactConfig(), "5", ".5", (1, 0)),
        (ExactConfig(), "-5", "-5.", (1, 1)),
        (ExactConfig(), "C", "C++", (1, 0)),
        (ExactConfig(), "A*", "A", (1, 0)),
        (ExactConfig(mode="lenient"), "New York", "Think.\nThe answer is New York.", (1, 1)),
        (ExactConfig(mode="lenient"), "New York", "Think.\nNew York\n", (1, 1)),
        (ExactConfig(mode="lenient"), "New York", "New York? No.\nAnswer: Rome", (1, 0)),
        (ExactConfig(mode="lenient"), "12", "Answer: 12\n\nQuestion: next?\nAnswer: 13", (1, 1)),
        (AnswerTagsConfig(), "The Eiffel Tower", "It is tall. <answer>eiffel tower.</answer>", (1, 1)),
        (AnswerTagsConfig(), "Eiffel Tower", "</think> <answer> **an Eiffel-Tower** </answer>\n", (1, 1)),
        (AnswerTagsConfig(), "New York, NY", "<answer>New York NY</answer>", (1, 1)),
        (AnswerTagsConfig(), "1,000", "<answer>1,000.</answer>", (1, 1)),
        (AnswerTagsConfig(), "1.5", "<answer>15</answer>", (1, 0)),
        (AnswerTagsConfig(), "-5", "<answer>5</answer>", (1, 0)),
        (AnswerTagsConfig(), "C++", "<answer>C</answer>", (1, 0)),
        (AnswerTagsConfig(), "vitamin A", "<answer>vitamin</answer>", (1, 0)),
        (AnswerTagsConfig(), "A", "<answer>The</answer>", (1, 0)),
        (AnswerTagsConfig(), "A", "<answer>(A)</answer>", (1, 0)),
        (AnswerTagsConfig(), "Paris", "Paris", (0, 0)),
        (AnswerTagsConfig(), "Paris", "<answer></answer>", (0, 0)),
        (AnswerTagsConfig(), "Paris", "<answer>Rome</answer><answer>Paris</answer>", (0, 0)),
        (AnswerTagsConfig(), "Paris", "<answer>Paris</answer> or Rome", (0, 0)),
        (AnswerTagsConfig(ignore_case=False), "Paris", "<answer>paris</answer>", (1, 0)),
        (AnswerTagsConfig(ignore_articles=False), "Paris", "<answer>the Paris</answer>", (1, 0)),
        (AnswerTagsConfig(mode="lenient"), "Paris", "<answer>Rome</answer> no, <answer>Paris</answer>!", (1, 1)),
        (AnswerTagsConfig(mode="lenient"), "Paris", "<answer>Paris</answer></think> Rome", (0, 0)),
        (ChoiceConfig(), "(B) Ben", "The answer is (B).", (0, 1)),
        (ChoiceConfig(), "B", "It's not A, so it must be B", (0, 1)),
        (ChoiceConfig(), "(B)", r"\boxed{B}", (1, 1)),
        (ChoiceConfig(), "B", "A train leaves. The answer is (B).", (0, 1)),
        (ChoiceConfig(), "A", "A train leaves.", (0, 0)),
        (ChoiceConfig(mode="strict"), "B", "(B)", (1, 1)),
        (ChoiceConfig(mode="strict"), "B", "The answer is B", (0, 0)),
        (ChoiceConfig(mode="strict"), "B", r"$\boxed{B}$.", (1, 1)),
        (ChoiceConfig(mode="strict"), "B", r"It may be A, so \boxed{B}", (0, 0)),
        (RegexConfig(pattern=r"yes|no"), None, "well, no", (1, 1)),
        (RegexConfig(pattern=r"yes|no", mode="strict"), None, "well, no", (0, 0)),
        (RegexConfig(pattern=r"ANSWER: (\w+)"), "b", "ANSWER: a, then ANSWER: b", (1, 1)),
        (RegexConfig(pattern=r"answer: (\w+)", ignore_case=True), "B", "ANSWER: b", (1, 1)),
        (RegexConfig(pattern=r"ANSWER: (\w+)"), "b", "b", (0, 0)),
        (JsonSchemaConfig(definition=SCHEMA), None, 'So:\n```json\n{"a": 1}\n```', (1, 1)),
        (JsonSchemaConfig(definition=SCHEMA), None, 'as in {"b": 1} it is {"a": 10, "b": [2]}.', (1, 1)),
        (JsonSchemaConfig(definition=SCHEMA), None, '{"a": "1"}', (1, 0)),
        (JsonSchemaConfig(definition=SCHEMA), None, "a: 1", (0, 0)),
        (JsonSchemaConfig(definition=SCHEMA, mode="strict"), None, 'So: {"a": 1}', (0, 0)),
    ],
)
def test_verdicts(
    config: VerifierConfig,
    answer: str | None,
    text: str,
    format_and_right: tuple[int, int],
    sample: Callable[..., Sample],
) -> None:
    score = config.build(None).verify(sample(text, answer))  # type: ignore[arg-type]
    assert (score.parts["format"], score.parts["answer"]) == format_and_right
    assert score.value == score.parts["reward"] == format_and_right[1]


def test_a_schema_may_come_with_the_row(sample: Callable[..., Sample]) -> None:
    verifier = JsonSchemaConfig(format_weight=0.2).build(None)  # type: ignore[arg-type]
    assert verifier.verify(sample('{"a": 1}', schema=SCHEMA)).value == 1.0
    assert verifier.verify(sample('{"b": 1}', schema=SCHEMA)).value == pytest.approx(0.2)
    assert verifier.verify(sample('{"a": 1}')).status is ScoreStatus.MISSING
    assert "not a JSON schema" in verifier.verify(sample("{}", schema={"type": "integr"})).detail


def test_a_schema_fetches_nothing(sample: Callable[..., Sample], tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"type": "integer"}')
    verifier = JsonSchemaConfig().build(None)  # type: ignore[arg-type]
    for ref in ((tmp_path / "other.json").as_uri(), "https://example.invalid/schema.json", "#/$defs/none"):
        schema = {"properties": {"a": {"items": [{"$ref": ref}]}}, "$schema": "http://json-schema.org/draft-07/schema#"}
        score = verifier.verify(sample('{"a": [1]}', schema=schema))
        assert score.status is ScoreStatus.MISSING
        assert ref in score.detail
    for good in (
        {"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}},
        {"$id": "urn:x", "properties": {"a": {"$ref": "urn:x#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}},
        {"properties": {"a": {"$ref": "#"}, "$ref": {}}, "type": ["integer", "object"]},
    ):
        assert verifier.verify(sample('{"a": 1}', schema=good)).value == 1.0
        assert verifier.verify(sample('{"a": "x"}', schema=good)).value == 0.0
    meta = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    assert verifier.verify(sample('{"type": "integr"}', schema=meta)).value == 0.0


@pytest.mark.parametrize(("pattern", "why"), [("(a", "not a regular expression"), ("(a)(b)", "at most one")])
def test_bad_patterns_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        RegexConfig(pattern=pattern)


def test_a_completion_on_which_a_pattern_backtracks_for_ever_is_wrong(
    make_verifier: Callable, sample: Callable[..., Sample]
) -> None:
    judge = make_verifier("regex", verifier={"name": "regex", "pattern": "(?:a|a)+$"}, timeout_s=1.5)
    scores = judge.score([sample("a" * 60 + "b"), sample("aa")])
    assert [(s.status, s.value) for s in scores] == [(ScoreStatus.OK, 0.0), (ScoreStatus.OK, 1.0)]
    assert "gave no verdict" in scores[0].detail


def test_a_reference_that_is_no_letter_is_found_at_start(command: Callable, tmp_path: Path) -> None:
    rows = [{"prompt": "?", "answer": a} for a in ("A", "B", "true")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, output = command(
        "train",
        "--algo",
        "grpo",
        "--reward",
        "choice",
        "--dataset",
        tmp_path / "rows.jsonl",
        "--set",
        "dataset.heldout_fraction=0.0",
    )
    assert code == 2
    assert "rows.jsonl, line 3" in output
