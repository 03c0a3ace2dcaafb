"""Prompts by a file of pass rates: order, band, ids that match nothing, and every file that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_core.data.order import PromptOrder
from rlhf_core.data.settings import CurriculumSettings
from rlhf_core.types.rollouts import Prompt
from rlhf_plugin_schedule.curriculum import Curriculum, read_values

Refused = Callable[..., None]
Write = Callable[..., str]


def prompts(**sizes: int) -> list[Prompt]:
    return [
        Prompt(f"{s}/{i}", ({"role": "user", "content": f"{i}"},), source=s) for s, n in sizes.items() for i in range(n)
    ]


def rows(values: dict[str, float], column: str = "id", key: str = "pass_rate") -> list[dict[str, Any]]:
    return [{column: name, key: value} for name, value in values.items()]


def kept(path: str, given: Sequence[Prompt], held: Sequence[Prompt] = (), **options: Any) -> list[str]:
    return [p.id for p in Curriculum(CurriculumSettings(path=path, **options)).apply(given, held, None)[0]]


VALUES = {"0": 0.0, "1": 0.25, "2": 1.0, "3": 0.75, "4": 0.5}


def test_order_and_band(write: Write) -> None:
    path = write("p.jsonl", rows(VALUES))
    assert kept(path, prompts(a=5)) == ["a/3", "a/4", "a/1"]
    assert kept(path, prompts(a=5), order="hard_first") == ["a/1", "a/4", "a/3"]
    assert kept(path, prompts(a=5), order="none") == ["a/1", "a/3", "a/4"]
    assert kept(path, prompts(a=5), band=None) == ["a/2", "a/3", "a/4", "a/1", "a/0"]
    assert kept(path, prompts(a=5), band=(0.5, 0.75)) == ["a/3", "a/4"]
    counts = Curriculum(CurriculumSettings(path=path)).apply(prompts(a=5), [], None)[1]
    assert counts == {"curriculum_out_of_band": 2}
    with pytest.raises(ValidationError, match="is empty"):
        CurriculumSettings(path=path, band=(0.9, 0.1))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(VALUES),
        json.dumps({f"a/{k}": v for k, v in VALUES.items()}, indent=1),
        json.dumps(rows(VALUES)),
        "\n".join(map(json.dumps, rows(VALUES, "prompt_id"))),
    ],
)
def test_forms_of_the_file(write: Write, text: str) -> None:
    assert kept(write("p.json", [text]), prompts(a=5)) == ["a/3", "a/4", "a/1"]


def test_one_row_is_a_row_and_any_key_will_do(write: Write) -> None:
    path = write("p.jsonl", [{"id": 0, "solved": 3, "of": 8}])
    assert read_values(CurriculumSettings(path=path, key="solved")) == {"0": 3.0}


def test_equal_values_are_in_a_seeded_order(write: Write) -> None:
    settings = CurriculumSettings(path=write("p.json", [json.dumps({str(i): 0.5 for i in range(30)})]))
    orders = [[p.id for p in Curriculum(settings).apply(prompts(a=30), [], s)[0]] for s in (1, 1, 2, None)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[3] == [f"a/{i}" for i in range(30)]


def test_several_sources_each_in_its_order(write: Write, refused: Refused) -> None:
    given = prompts(a=4, b=4)
    path = write("p.jsonl", rows({p.id: (i % 4 + 1) / 5 for i, p in enumerate(given)}))
    kept_prompts, _ = Curriculum(CurriculumSettings(path=path)).apply(given, [], 7)
    batch = [p.id for p in PromptOrder(kept_prompts, {"a": 1.0, "b": 1.0}, 0, shuffle=False).take(4)]
    assert sorted(batch) == ["a/2", "a/3", "b/2", "b/3"]
    refused(
        lambda: kept(write("q.json", [json.dumps(VALUES)]), given, max_unmatched_fraction=1),
        "id '0' is in several sources",
        "'a/0', 'b/0'",
        "label",
    )


def test_ids_of_heldout_prompts_match(write: Write) -> None:
    path = write("p.json", [json.dumps(VALUES)])
    assert kept(path, prompts(a=5)[:4], prompts(a=5)[4:], max_unmatched_fraction=0) == ["a/3", "a/1"]


def test_ids_that_match_nothing(write: Write, refused: Refused) -> None:
    path = write("p.json", [json.dumps({**{f"{i}": 0.5 for i in range(18)}, "x18": 0.5, "x19": 0.5})])
    kept_prompts, counts = Curriculum(CurriculumSettings(path=path)).apply(prompts(a=20), [], None)
    assert (len(kept_prompts), counts) == (18, {"curriculum_ids_unmatched": 2, "curriculum_prompts_unmatched": 2})
    refused(
        lambda: kept(path, prompts(a=20), max_unmatched_fraction=0.05),
        "2 of 20 ids",
        "'x18', 'x19'",
        "'a/18'",
        "nearest to 'x18': '18'",
        "max_unmatched_fraction",
        "0.05",
    )
    refused(lambda: kept(path, prompts(a=30)), "12 of 30 prompts are not in", "'a/18'", "nearest to 'a/18': 'x18'")
    refused(
        lambda: kept(
            path,
            prompts(b=3)[:0] or [Prompt("b/zz", ({"role": "user", "content": "?"},), source="b")],
            max_unmatched_fraction=1,
        ),
        "20 of 20 ids",
        "match no prompt",
    )


def test_a_source_that_the_file_does_not_know(write: Write, refused: Refused) -> None:
    path = write("p.json", [json.dumps({f"a/{i}": 0.5 for i in range(30)})])
    refused(lambda: kept(path, prompts(a=30, b=2)), "no prompt of source 'b' is in", "p.json", "leave the mixture")


def test_nothing_left_in_the_band(write: Write, refused: Refused) -> None:
    path = write("p.json", [json.dumps({**{f"a/{i}": 0.5 for i in range(3)}, **{f"b/{i}": 0.0 for i in range(3)}})])
    refused(lambda: kept(path, prompts(a=3, b=3)), "source 'b'", "from 0 to 0", "(0.01, 0.99)", "band")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ("is empty",)),
        ("[]", ("is empty",)),
        ("{}", ("is empty",)),
        ('{"1": 1' + "0" * 400 + "}", ("'1' is not a number",)),
        ('{"1": ' + "1" * 5000 + "}", ("cannot be read", "limit")),
        ('{"1": ' * 9000 + "0.5" + "}" * 9000, ("cannot be read",)),
        ('{"id": "1", "pass_rate": 0.5}\n{"id": "2", "pass_rate": "high"}', ("'2' is not a number", "'high'")),
        ('{"1": 0.5, "2": null}', ("'2' is not a number", "None")),
        ('{"1": NaN}', ("'1' is not a number",)),
        ('[{"id": "1", "pass_rate": true}]', ("'1' is not a number", "True")),
        ('{"id": "1", "pass_rate": 0.5}\n{"id": "1", "pass_rate": 0.25}', ("'1' occurs twice", "0.5 and 0.25")),
        ('{"1": 0.5, "1": 0.25}', ("'1' occurs twice", "0.5 and 0.25")),
        (
            '{"id": "1", "passrate": 0.5}\n{"id": "2", "passrate": 0.5}',
            ("no 'pass_rate' for '1'", "line 1", "'passrate'"),
        ),
        ('{"pass_rate": 0.5}\n{"pass_rate": 0.5}', ("has no id", "line 1")),
        ('{"id": "1", "pass_rate": 0.5}\n{"id": ', (":2", "not valid JSON")),
    ],
)
def test_unusable_file(write: Write, text: str, says: tuple[str, ...], refused: Refused) -> None:
    path = write("p.jsonl", [text])
    refused(lambda: read_values(CurriculumSettings(path=path)), "p.jsonl", *says)


def test_missing_file(write: Write, refused: Refused) -> None:
    path = write("passes.jsonl", ["{}"]).replace("passes", "pases")
    refused(lambda: read_values(CurriculumSettings(path=path)), "curriculum '", "does not exist", "'passes.jsonl'")
