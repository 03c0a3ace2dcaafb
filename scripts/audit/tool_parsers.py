"""Our reading of tool calls beside transformers' ``parse_response`` with TRL's templates, on the same turns.

    python -m scripts.audit.tool_parsers --write docs/bench/tool_parsers.json

For each family, turns that are well formed, odd or broken. ``calls`` are (name, arguments) that would run; ``errors``
are what the policy is shown. TRL 1.16 has no errors: a turn that it cannot read whole is plain text. Llama's and
Mistral's forms, and vLLM's parsers, which are not installed here, were not compared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.data.tool_call_parser import parse_turn
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.tool_call_format import format_named

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": %s}\n</tool_call>'
XML = "<tool_call>\n<function=add>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>"
TURNS: Mapping[str, Mapping[str, str]] = {
    "hermes": {
        "one call": CALL % '{"a": 2}',
        "text before it": "I add.\n" + CALL % '{"a": 2}',
        "two calls": CALL % '{"a": 2}' + "\n" + CALL % '{"a": 3}',
        "nested": CALL % '{"a": {"b": [1, null, "x"]}}',
        "unicode": CALL % '{"a": "ä😀"}',
        "the closing tag in a string": CALL % '{"a": "</tool_call>"}',
        "text after it": CALL % '{"a": 2}' + "\nDone.",
        "not closed": (CALL % '{"a": 2}').removesuffix("\n</tool_call>"),
        "cut": CALL[:30],
        "no JSON": CALL % "{a: 2}",
        "a key twice": CALL % '{"a": 2, "a": 3}',
        "NaN": CALL % '{"a": NaN}',
        "one good, one broken": CALL % '{"a": 2}' + "\n" + CALL % "{a: 2}",
        "no name": '<tool_call>\n{"arguments": {}}\n</tool_call>',
        "an answer": "It is 4.",
    },
    "qwen_xml": {
        "one call": XML % "2",
        "text before it": "I add.\n\n" + XML % "2",
        "two calls": XML % "2" + "\n" + XML % "3",
        "lines": XML % "a\n\nb",
        "cut": (XML % "2")[:40],
        "an answer": "It is 4.",
    },
}
TEMPLATES = {"hermes": "qwen3_template", "qwen_xml": "qwen3_5_template"}


def ours(family: str, text: str) -> dict[str, Any]:
    """Calls that would run, and errors that the policy would read."""
    turn = parse_turn(text, format_named(family), TOOLS)
    calls = [[c.name, json.loads(json.dumps(c.as_json()["function"]["arguments"]))] for c in turn.calls if c.ok]
    return {"calls": calls, "errors": [c.error for c in turn.calls if not c.ok], "content": turn.content}


def theirs(family: str, text: str, tokenizer: Any) -> dict[str, Any]:
    """TRL's ``parse_response``."""
    from trl import chat_template_utils

    tokenizer.response_template = getattr(chat_template_utils, TEMPLATES[family])
    prefix = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    parsed = chat_template_utils.parse_response(
        tokenizer, tokenizer.encode(text, add_special_tokens=False), prefix=prefix, tools=[*TOOLS]
    )
    calls = [[c["function"]["name"], c["function"].get("arguments")] for c in parsed.get("tool_calls") or ()]
    return {"calls": calls, "content": parsed["content"]}


def compare() -> list[dict[str, Any]]:
    """A row for each turn."""
    tokenizer = load_tokenizer(ModelConfig(path="pocket"))
    rows: list[dict[str, Any]] = []
    for family, turns in TURNS.items():
        for name, text in turns.items():
            mine, other = ours(family, text), theirs(family, text, tokenizer)
            same = mine["calls"] == other["calls"] and not mine["errors"]
            rows.append({"family": family, "turn": name, "same": same, "ours": mine, "trl": other})
    return rows


def main() -> None:
    """Print where the two differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = compare()
    for row in rows:
        if not row["same"]:
            print(f"{row['family']}, {row['turn']}: ours {row['ours']}; TRL {row['trl']}")
    print(f"{sum(row['same'] for row in rows)} of {len(rows)} turns are read alike")
    if options.write is not None:
        options.write.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
