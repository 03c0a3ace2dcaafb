"""Half a character and numbers that are not finite never enter, whatever brings them; the place is named."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_core.config import BuildContext, ConfigError, Registry
from rlhf_core.data import DatasetError, files, source
from rlhf_core.data.datasets import Datasets
from rlhf_core.data.files import collected_broken_rows, read_rows
from rlhf_core.data.jsonl import flaw_of
from rlhf_core.data.schema import finite
from rlhf_core.data.settings import DatasetSettings

HALF = "\ud83d"
GOOD = {"prompt": "What is 2 + 2?", "chosen": "4", "rejected": "5", "margin": 1.5}
BAD_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000)
BAD_JSON = (*BAD_NUMBERS, r'"\ud83d"', r'{"a": ["\udc00"]}', "[" * 3000)
ROWS: list[tuple[str, Any]] = [("margin", math.nan), ("margin", math.inf), ("prompt", HALF), ("more", [{"x": HALF}])]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3)
    ),
)


def clean(value: Any) -> bool:
    """The rule, written another way."""
    if isinstance(value, str):
        return not any(0xD800 <= ord(c) <= 0xDFFF for c in value)
    if isinstance(value, float):
        return math.isfinite(value)
    parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return all(map(clean, parts))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.text(st.characters(), max_size=5), values, max_size=4))
def test_the_gate_lets_in_utf8_and_finite_numbers_alone(row: dict[str, Any]) -> None:
    assert (flaw_of(row) == "") == clean(row)


def test_numbers_of_numpy_count_and_other_values_do_not_matter() -> None:
    assert flaw_of({"x": np.float32("nan")})
    assert flaw_of({"x": np.float64("inf")})
    assert not flaw_of({"x": np.float32(1.0), "sound": np.zeros(3), "raw": b"\xff", "path": Path("a")})


@pytest.mark.parametrize("value", BAD_JSON)
@pytest.mark.parametrize("form", ["lines", "array"])
def test_a_file_with_such_a_value_is_refused_with_its_place(tmp_path: Path, value: str, form: str) -> None:
    file = tmp_path / "pairs.jsonl"
    rows = [json.dumps(GOOD), json.dumps({**GOOD, "margin": "HERE"}).replace('"HERE"', value)]
    file.write_text("\n".join(rows) + "\n" if form == "lines" else f"[{','.join(rows)}]")
    with pytest.raises(DatasetError) as caught:
        read_rows(str(file))
    assert f"{file}:2" in str(caught.value) or f"{file}, row 2" in str(caught.value) or form == "array"
    assert str(file) in str(caught.value)
    if form == "lines":
        with collected_broken_rows() as broken:
            assert read_rows(str(file)).rows == [GOOD]
        assert len(broken) == 1


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_bytes_that_are_not_utf8_are_refused_with_their_line(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"rows.jsonl{ending}"
    data = b"".join(json.dumps(GOOD).encode() + b"\n" for _ in range(9000)) + b'{"prompt": "caf\xe9"}\n'
    file.write_bytes(gzip.compress(data) if ending else data)
    with pytest.raises(DatasetError, match="line 9001 cannot be read"):
        read_rows(str(file))


def pairs(tmp_path: Path, rows: list[dict[str, Any]], source: str) -> Any:
    if source == "parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, tmp_path / "pairs.parquet")
        settings = {"name": "parquet", "path": str(tmp_path / "pairs.parquet")}
    else:
        (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = {"name": "jsonl" if source == "jsonl" else "hub", "path": str(tmp_path / "pairs.jsonl")}
    registry = Registry(disabled=())
    parsed = DatasetSettings.model_validate(settings, context={"registry": registry})
    context = BuildContext(config=None, registry=registry, seed=0)  # type: ignore[arg-type]
    return Datasets(parsed, context).pairs("train")


@pytest.mark.parametrize("source", ["jsonl", "parquet", "hub"])
@pytest.mark.parametrize("margin", [math.nan, math.inf, "nan", "1e999", "-inf", 1e308, -4e38])
def test_a_margin_that_is_not_finite_is_refused_from_every_source(tmp_path: Path, source: str, margin: Any) -> None:
    rows = [{**GOOD, "margin": "1" if isinstance(margin, str) else 1.0}, {**GOOD, "prompt": "3?", "margin": margin}]
    with pytest.raises(DatasetError, match=r"(margin|not JSON|cannot be loaded)[\s\S]*"):
        pairs(tmp_path, rows, source)


@pytest.mark.parametrize("margin", [True, False, np.True_, "true", [1.0], math.nan, 10**400, 1e39])
def test_a_margin_that_is_no_number_is_refused(margin: Any) -> None:
    import rlhf_core

    with pytest.raises(DatasetError, match=r"row 2.*") as caught:
        rlhf_core.train("dpo", dataset=[GOOD, {**GOOD, "prompt": "3?", "margin": margin}])
    assert "margin" in str(caught.value)


@given(st.booleans() | st.floats() | st.integers() | st.text() | st.none() | st.lists(st.integers()))
def test_only_numbers_and_their_text_are_numbers(value: Any) -> None:
    size = finite(value)
    assert math.isfinite(size) or math.isnan(size)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        assert math.isnan(size)
    elif isinstance(value, float) and math.isfinite(value):
        assert size == value


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hub"])
def test_every_row_of_a_file_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    looked_at: list[Any] = []
    for module in (files, source):
        monkeypatch.setattr(module, "flaw_of", lambda row: (looked_at.append(dict(row)), flaw_of(row))[1])
    rows = [GOOD, {**GOOD, "prompt": "3?"}]
    assert len(pairs(tmp_path, rows, kind)) == 2
    assert sorted(map(str, looked_at)) == sorted(map(str, rows))


def test_a_list_made_of_rows_of_a_file_is_looked_at() -> None:
    checked = files.parse_json(json.dumps(GOOD), "rows.jsonl").rows
    assert isinstance(checked, files.CheckedRows)
    assert not isinstance([*checked, {"prompt": HALF}], files.CheckedRows)


def test_prompts_of_python_and_of_the_command_line() -> None:
    from rlhf_core.python_api.inference import _prompts
    from rlhf_plugin_native.generate import read_prompts

    for value in (HALF, {"prompt": HALF}, {"prompt": "2?", "score": math.nan}):
        with pytest.raises(ConfigError, match=r"prompts\[1\]: column"):
            _prompts(["fine", value])
    with pytest.raises(ConfigError, match="--prompt holds half of a character"):
        read_prompts([HALF], [])


@pytest.mark.parametrize(("column", "value"), ROWS)
def test_rows_given_in_python_are_refused(tmp_path: Path, column: str, value: Any) -> None:
    import rlhf_core

    with pytest.raises(DatasetError, match=rf"row 2: column '{column}' holds"):
        rlhf_core.train("dpo", dataset=[GOOD, {**GOOD, "prompt": "3?", column: value}], run_dir=tmp_path / "run")
