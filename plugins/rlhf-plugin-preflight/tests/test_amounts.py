"""Sizes as people write them, and shapes of models that are not at hand."""

from __future__ import annotations

import pytest

from rlhf_core.types.errors import ConfigError, ModelError
from rlhf_plugin_preflight.memory.amounts import available_ram, read_amount
from rlhf_plugin_preflight.memory.shapes import SHAPES, shape_config


def test_binary_and_decimal_units_are_told_apart() -> None:
    assert read_amount("80GiB") == 80 << 30
    assert read_amount("80GB") == 80 * 10**9
    assert read_amount(" 512 mib ") == 512 << 20


@pytest.mark.parametrize("text", ["", "much", "-3GiB", "80 GiBs", "1e9"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an amount of memory"):
        read_amount(text)


def test_an_amount_without_its_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match="unit may be missing"):
        read_amount("80")


def test_this_machine_has_memory() -> None:
    assert 1 << 28 < available_ram() < 1 << 50


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("shape:layers=2,hidden=64,heads=5,vocab=100", "do not divide hidden size"),
        ("shape:layers=2,hidden=64,heads=4,kv_heads=3,vocab=100", "key/value heads do not divide"),
        ("shape:layers=0,hidden=64,heads=4,vocab=100", "at least 1"),
        ("shape:layers=9999,hidden=64,heads=4,vocab=100", "1,000 layers"),
        ("shape:layer=2,hidden=64,heads=4,vocab=100", "did you mean 'layers'"),
        ("shape:hidden=64,heads=4,vocab=100", "does not say layers"),
    ],
)
def test_shapes_that_cannot_be_are_refused(text: str, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        shape_config(text)


def test_shapes_reach_from_117_million_to_70_billion_parameters() -> None:
    assert {"gpt2-117m", "llama-2-7b", "llama-2-70b"} <= SHAPES.keys()
    assert shape_config("llama-2-70b").num_hidden_layers == 80
