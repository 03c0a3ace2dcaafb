"""What `tool_spec` says of an argument reaches the policy, and holds; the example is that of the page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.data.tools import read_tools
from rlhf_core.models.prompt_format import Formatter
from rlhf_plugin_episodes.tool_calls import format_named, parse_turn
from rlhf_plugin_episodes.tool_spec import tool_spec
from tests.docs.blocks import ALL

PAGE = "docs/episodes.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page's example defines."""
    (block,) = [b for b in ALL if b.page == PAGE and b.language == "python" and "FORECAST" in b.text]
    names: dict[str, Any] = {}
    exec(block.text, names)
    return names


def test_enum_description_and_default_are_shown_to_the_policy(page: dict[str, Any], tokenizer: Any) -> None:
    formatter = Formatter(tokenizer, "chat")
    shown = tokenizer.decode(formatter.encode([{"role": "user", "content": "?"}], [page["FORECAST"]]))
    for text in (
        '"enum": ["C", "F"]',
        '"default": "C"',
        '"default": null',
        "for example Turin",
        '"required": ["city"]',
    ):
        assert text in shown, text
    assert read_tools([page["FORECAST"]], "test") == (page["FORECAST"],)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('{"city": "Turin"}', ""),
        ('{"city": "Turin", "unit": "F", "days": null, "detailed": true}', ""),
        ('{"city": "Turin", "unit": "K"}', "$.unit: 'K' is not one of ['C', 'F']"),
        ('{"city": "Turin", "days": 0}', "$.days: 0 is less than the minimum of 1"),
        ('{"unit": "C"}', "'city' is a required property"),
        ('{"city": "Turin", "when": 1}', "'when' was unexpected"),
    ],
)
def test_a_call_is_held_against_them_and_a_default_is_not_filled_in(
    page: dict[str, Any], arguments: str, error: str
) -> None:
    text = f'<tool_call>{{"name": "forecast", "arguments": {arguments}}}</tool_call>'
    (call,) = parse_turn(format_named("hermes"), text, [page["FORECAST"]]).calls
    assert error in call.error
    assert call.ok == (not error)
    if call.ok:
        unit = call.arguments.get("unit", "C")
        assert page["step"](SimpleNamespace(), [call]) == [f"Turin: 21 {unit}"]


def test_an_argument_may_be_called_name_or_description() -> None:
    spec = tool_spec("find", "Finds.", required=["name"], name="string", description={"type": "string"})
    schema = spec["function"]["parameters"]
    assert (list(schema["properties"]), schema["required"]) == (["name", "description"], ["name"])
