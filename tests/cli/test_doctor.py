"""`rlhf doctor` says what is there, and exits with 1 when something is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

Rlhf = Callable[..., Any]


def checks(text: str) -> dict[str, dict[str, str]]:
    return {row["what"]: row for row in json.loads(text)["checks"]}


@pytest.mark.slow
def test_a_sound_installation(rlhf: Rlhf) -> None:
    out = rlhf("doctor", "--json")
    assert out.code == 0, out.out
    findings = checks(out.out)
    assert findings["torch"]["detail"] == metadata.version("torch")
    assert {
        "python",
        "peft",
        "cpu",
        "model pocket",
        "model pocket-tools",
        "hooks",
        "disk space here",
        "cache folder",
        "settings folder",
    } <= set(findings)
    assert any(what.startswith("rlhf-plugin-grpo") for what in findings)
    assert not Path("../cache").exists()


@pytest.mark.slow
def test_a_plugin_that_does_not_import(rlhf: Rlhf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site" / "rlhf_plugin_bad-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlhf-plugin-bad\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rlhf.loss]\nbad = no_such_module_here:Config\n[rlhf]\nwatch = no_such_module_here:hooks\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    out = rlhf("doctor", "--json")
    assert out.code == 1
    findings = checks(out.out)
    assert findings["loss rlhf-plugin-bad/bad"]["state"] == "broken"
    assert "no_such_module_here" in findings["loss rlhf-plugin-bad/bad"]["detail"]
    assert findings["hooks"]["state"] == "broken"
    text = rlhf("doctor").out
    assert "2 broken" in text
    assert "fix: " in text
    assert rlhf("plugins", "disable", "rlhf-plugin-bad").code == 0
    sound = rlhf("doctor")
    assert sound.code == 0
    assert "everything needed is in order" in sound.out


def test_what_only_an_extra_installs_may_be_absent(rlhf: Rlhf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package, marker in (("rlhf_plugin_more", "; extra == 'more'"), ("rlhf_plugin_needy", "")):
        folder, info = tmp_path / "site" / package, tmp_path / "site" / f"{package}-1.0.dist-info"
        folder.mkdir(parents=True)
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: absent-thing{marker}\n"
        )
        (info / "entry_points.txt").write_text(f"[rlhf.loss]\n{package} = {package}:Config\n")
        (folder / "__init__.py").write_text(
            "from rlhf_core.config import ComponentConfig\n"
            f"class Config(ComponentConfig):\n    name: str = '{package}'\n"
        )
        (folder / "special.py").write_text("import absent_thing.part\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    out = rlhf("doctor", "--json")
    assert out.code == 1, out.out
    broken = {what: row["detail"] for what, row in checks(out.out).items() if row["state"] == "broken"}
    assert all("needy" in what for what in broken)
    assert "absent_thing" in str(broken)


def test_folders_that_cannot_be_written(rlhf: Rlhf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "file" / "cache"))
    out = rlhf("doctor", "--json")
    assert out.code == 1
    assert "RLHF_CACHE" in checks(out.out)["cache folder"]["fix"]


def test_a_damaged_settings_file(rlhf: Rlhf, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "plugins.json").write_text("{")
    for command in ("doctor",), ("plugins", "list"):
        out = rlhf(*command)
        assert out.code == 2
        assert "plugins.json" in out.err
        assert "Traceback" not in out.err


def test_a_mistyped_command(rlhf: Rlhf) -> None:
    out = rlhf("docter")
    assert out.code == 2
    assert "Did you mean 'doctor'?" in out.err
