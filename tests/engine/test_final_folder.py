"""What lies in ``final/`` beside the merged weights: the adapter as peft reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.manifest import find_damage
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.sources import resolve_model


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step with LoRA from a folder; not to be changed."""
    from rlhf_core.cli.main import main

    folder = tmp_path_factory.mktemp("lora")
    shutil.copytree(resolve_model("pocket").path, folder / "base")
    sizes = ("max_steps=2", "batch_size=4", "eval_samples=2", "optimizer.learning_rate=0.01")
    settings = [word for text in sizes for word in ("--set", f"trainer.{text}")]
    args = ["--algo", "sft", "--model", str(folder / "base"), "--set", "model.lora.r=2", "--set", "dataset.limit=16"]
    with pytest.raises(SystemExit) as caught:
        main(["train", *args, *settings, "--run-dir", str(folder / "run")])
    assert caught.value.code == 0
    return folder / "run"


@pytest.mark.filterwarnings("ignore")
def test_peft_loads_the_adapter(lora_run: Path) -> None:
    import torch
    from peft import AutoPeftModelForCausalLM

    adapter = lora_run / "final" / "adapter"
    settings = json.loads((adapter / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(lora_run.parent / "base"), "as the user typed it"
    assert {p.name for p in adapter.iterdir()} == {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}
    merged = load_policy(ModelConfig(path=str(lora_run))).model
    ids = torch.arange(3, 11)[None]
    with torch.no_grad():
        wrapped: Any = AutoPeftModelForCausalLM.from_pretrained(adapter).eval()
        base = load_policy(ModelConfig(path=str(lora_run.parent / "base"))).model
        rounding = (wrapped(ids).logits - merged(ids).logits).abs().max()  # one adds W x + B A x, the other (W + B A) x
        learnt = (base(ids).logits - merged(ids).logits).abs().max()
        assert rounding < 1e-3 < learnt / 10, f"{float(rounding):.1e} of {float(learnt):.1e}"
    ours = load_policy(ModelConfig(path=str(adapter)))
    assert all(torch.equal(v, merged.state_dict()[k]) for k, v in ours.model.state_dict().items())
    assert find_damage(lora_run / "final") == []
