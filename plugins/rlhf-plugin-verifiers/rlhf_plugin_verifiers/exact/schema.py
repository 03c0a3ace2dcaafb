"""JSON that fits a schema; needs the optional ``jsonschema``."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rlhf_core.data import Prompt
from rlhf_plugin_verifiers.graded import Comparison, GradedVerifier
from rlhf_plugin_verifiers.maths.text import after_reasoning

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.exact.config import JsonSchemaConfig


_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)
MAX_TRIES = 50
"""Places at which the lenient mode looks for an object or array, from the first on."""


def why_unusable(schema: object) -> str | None:
    if find_spec("jsonschema") is None:
        return "verifier 'json_schema' needs jsonschema: pip install 'rlhf-plugin-verifiers[schema]'"
    if not isinstance(schema, dict):
        return "there is no schema: set verifier.definition, or give the rows a column 'schema'"
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return f"not a JSON schema: {error.message[:200]}"
    missing = unresolved(schema)
    return None if missing is None else f"nothing is fetched, and the schema does not hold its $ref {missing[:200]!r}"


def unresolved(schema: Any) -> str | None:
    """The first ``$ref`` that leads neither into the schema nor to one of JSON Schema's own; None if there is none."""
    from jsonschema_specifications import REGISTRY
    from referencing import Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    def search(resource: Any, resolver: Any) -> str | None:
        resolver = resolver.in_subresource(resource)
        if isinstance(resource.contents, dict) and "$ref" in resource.contents:
            try:
                resolver.lookup(resource.contents["$ref"])
            except Unresolvable:
                return str(resource.contents["$ref"])
        return next((bad for sub in resource.subresources() if (bad := search(sub, resolver)) is not None), None)

    document = Resource.from_contents(schema, default_specification=DRAFT202012)
    name = document.id() or ""
    return search(document, REGISTRY.with_resource(name, document).crawl().resolver(base_uri=name))


def closed_validator(schema: Any) -> Any:
    """A validator that knows the schema and JSON Schema's own, and fetches nothing."""
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    return validator_for(schema)(schema, registry=REGISTRY)


def schema_verifier(config: JsonSchemaConfig) -> GradedVerifier:
    def compare(completion: str, prompt: Prompt) -> Comparison:
        is_json, value = read_json(completion, strict=config.mode == "strict")
        if not is_json:
            return Comparison(False, False, "no JSON")
        schema: Any = config.definition if config.definition is not None else prompt.meta["schema"]
        error = next(iter(closed_validator(schema).iter_errors(value)), None)
        return Comparison(True, error is None, "valid" if error is None else error.message)

    return GradedVerifier(config, compare, config.format_weight)


def read_json(text: str, *, strict: bool) -> tuple[bool, Any]:
    """``(found, value)`` of a text: all of it, or leniently its last code fence, or its longest object or array."""
    try:
        return True, json.loads(text)
    except (ValueError, RecursionError):
        if strict:
            return False, None
    text = after_reasoning(text)
    for fenced in reversed(_FENCE.findall(text)):
        is_json, value = read_json(fenced, strict=True)
        if is_json:
            return is_json, value
    return _embedded(text)


def _embedded(text: str) -> tuple[bool, Any]:
    longest: tuple[int, bool, Any] = (0, False, None)
    end = 0
    for start in [m.start() for m in re.finditer(r"[{\[]", text)][:MAX_TRIES]:
        if start < end:
            continue
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        longest = max(longest, (end - start, True, value), key=lambda candidate: candidate[0])
    return longest[1:]
