"""Sizes as people write them, and shapes of models that are not at hand."""

from __future__ import annotations

import pytest

from rlhf_core.types.errors import ConfigError, ModelError
from rlhf_plugin_preflight.memory.amounts import available_ram, read_amount
from rlhf_plugin_preflight.memory.shapes import SHAPES, shape_config
from rlhf_plugin_preflight.memory.states import States, states_of, table_of


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
        ("shape:family=gpt9,layers=2,hidden=64,heads=4,vocab=100", "families are llama, gpt2"),
        ("shape:family=gpt2,layers=2,hidden=64,heads=4,kv_heads=2,vocab=100", "as many key/value heads as heads"),
    ],
)
def test_shapes_that_cannot_be_are_refused(text: str, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        shape_config(text)


def test_shapes_reach_from_117_million_to_70_billion_parameters() -> None:
    assert {"gpt2-117m", "llama-2-7b", "llama-2-70b"} <= SHAPES.keys()
    assert shape_config("llama-2-70b").num_hidden_layers == 80


def test_a_shape_spelled_out_as_gpt2_is_the_published_one() -> None:
    spelled = shape_config("shape:family=gpt2,layers=24,hidden=1024,heads=16,vocab=50257,context=1024")
    assert spelled.to_dict() == shape_config("gpt2-355m").to_dict()
    assert (spelled.model_type, spelled.tie_word_embeddings) == ("gpt2", True)


def test_states_of_gpt2s_sizes_and_the_fewest_cards_are_the_published_tables() -> None:
    """Parameters as transformers counts them; the document's 18 bytes, 2P + 16P/N and 18P/N with all sharded."""
    small, medium, xl = states_of(("gpt2-117m", "gpt2-medium", "gpt2-xl"))
    assert (small.parameters, medium.parameters, xl.parameters) == (124_439_808, 354_823_168, 1_557_611_200)
    assert [round(medium.per_card(ranks, 18) / 1e9, 1) for ranks in (1, 4, 8)] == [6.4, 1.6, 0.8]
    assert [round(medium.per_card(ranks) / 1e9, 1) for ranks in (1, 4, 8)] == [5.7, 1.4, 0.7]
    cards = [States("", int(billions * 1e9)).cards(18) for billions in (1.54, 6.74, 13, 69.5)]
    assert cards == [1, 2, 3, 16]
    headers, rows = table_of([medium])
    assert dict(zip(headers, rows[0]))["FSDP 4"] == "1.4 / 1.6"
