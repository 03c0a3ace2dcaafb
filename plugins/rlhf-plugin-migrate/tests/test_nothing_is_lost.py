"""What a source names is translated, or named as lost with a reason, and the result does not run without it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import ConfigError, Registry
from rlhf_core.config.load import resolve, unfilled
from rlhf_plugin_migrate.case import Case
from rlhf_plugin_migrate.convert import Converted, convert, convert_key, unread_row
from rlhf_plugin_migrate.printing import lines
from rlhf_plugin_migrate.read import PeerConfig, read_peer_config
from rlhf_plugin_migrate.tables import PEERS, load_table
from rlhf_plugin_migrate.targets import Targets

TRL = load_table("trl")
SCRIPT_CLASSES = {
    "grpo": "GRPOScriptArguments",
    "rloo": "RLOOScriptArguments",
    "utils": "DatasetMixtureConfig",
    "sft": "ScriptArguments",
}


@cache
def registry() -> Registry:
    return Registry(disabled=())


def translated(tmp_path: Path, text: str, name: str = "train.py", wanted: str | None = None) -> Converted:
    file = tmp_path / name
    file.write_text(text)
    peer_config = read_peer_config((str(file),), TRL, wanted)
    return convert(peer_config, TRL, registry(), TRL.classes[peer_config.program or wanted or "GRPOConfig"])


def value_at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


def another(default: Any, annotation: str) -> Any:
    """A value that is not the default of a field."""
    if isinstance(default, bool) or "bool" in annotation:
        return not default
    if isinstance(default, int | float):
        return default + 1
    return 3 if "float" in annotation or "int" in annotation else ["something/else"] if "list" in annotation else "x/y"


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted({*TRL.classes} - {"PPOConfig"}), "ModelConfig", *SCRIPT_CLASSES.values()])
def test_no_field_of_trl_falls_through(name: str) -> None:
    """Each is set, or left to the user, or has a reason; alone, at a value that is not its default."""
    trl = pytest.importorskip("trl")
    from importlib import import_module

    modules = [trl, *(import_module(f"trl.scripts.{module}") for module in SCRIPT_CLASSES)]
    cls = next(getattr(module, name) for module in modules if hasattr(module, name))
    targets = Targets(registry(), {"trainer": TRL.classes.get(name, "grpo")})
    silent: list[str] = []
    for field in dataclasses.fields(cls):
        made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        case = Case({field.name: another(made, str(field.type))}, targets.chosen["trainer"], targets, 1)
        try:
            row = convert_key(case, TRL, field.name)
        except ConfigError:
            continue  # the value is refused, and its place left open
        if row.note.startswith("not a key") or not (row.settings or row.note):
            silent.append(field.name)
    assert silent == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*TRL.trainers} - {"PPOTrainer"}))
def test_no_argument_of_a_trainer_falls_through(name: str) -> None:
    trl = pytest.importorskip("trl")
    parameters = list(inspect.signature(getattr(trl, name).__init__).parameters)[1:]
    assert list(TRL.trainers[name]) == parameters
    algorithm = TRL.classes[name.replace("Trainer", "Config")]
    case = Case({}, algorithm, Targets(registry(), {"trainer": algorithm}), 1)
    rows = [unread_row(case, TRL, parameter, "made()") for parameter in parameters]
    assert [row.key for row in rows if not (row.settings or row.note)] == []
    decides = {"model", "reward_funcs", "args", "train_dataset", "eval_dataset", "peft_config", "processing_class"}
    decides |= {"tools", "rollout_func", "environment_factory", "formatting_func"}
    assert [row.key for row in rows if row.key in decides and "???" not in row.settings.values()] == []


@pytest.mark.parametrize("peer", PEERS)
def test_what_has_no_counterpart_has_a_reason(peer: str) -> None:
    without = [e.keys for e in load_table(peer).entries if e.meaning in ("unneeded", "unsupported") and not e.note]
    assert without == []


PUBLIC = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = "Qwen/Qwen2-0.5B-Instruct"
RUN = f"{MODEL}-GRPO"
dataset = load_dataset("trl-lib/DeepMath-103K", split="train")

def reward_len(completions, **kwargs):
    return [-abs(20 - len(completion)) for completion in completions]

training_args = GRPOConfig(output_dir=RUN, num_generations=8, per_device_train_batch_size=8)
trainer = GRPOTrainer(
    model=MODEL, reward_funcs=REWARD, args=training_args, train_dataset=dataset,
    peft_config=LoraConfig(r=4, lora_alpha=9),
)
trainer.train()
"""


@pytest.mark.parametrize("reward", ["reward_len", "[reward_len, format_reward]", '["a/b", other]', "accuracy_reward"])
def test_a_script_with_reward_functions(tmp_path: Path, reward: str) -> None:
    converted = translated(tmp_path, PUBLIC.replace("REWARD", reward))
    assert converted.config["model"] == {"path": "Qwen/Qwen2-0.5B-Instruct", "lora": {"r": 4, "alpha": 9}}
    assert converted.config["dataset"] == {"name": "trl-lib/DeepMath-103K", "split": "train"}
    assert list(unfilled(converted.config)) == ["reward.name"]
    assert reward.split(",")[0].strip('["') in "\n".join(lines(converted, "TRL"))


def test_all_that_one_key_stands_for_is_named(tmp_path: Path) -> None:
    text = "model = adapted(base, r=16)\nGRPOTrainer(model=model, processing_class=tokenizer, reward_funcs='org/rm')"
    printed = "\n".join(lines(translated(tmp_path, f"from trl import GRPOTrainer\n{text}"), "TRL"))
    assert "adapted(base, r=16)" in printed
    assert 'processing_class="tokenizer"' in printed


@pytest.mark.parametrize("reward", ['"org/rm"', '["org/rm"]'])
def test_a_script_with_a_reward_model(tmp_path: Path, reward: str) -> None:
    converted = translated(tmp_path, PUBLIC.replace("REWARD", reward))
    assert converted.config["reward"] == {"name": "bradley_terry", "path": "org/rm"}
    file = tmp_path / "ours.yaml"
    file.write_text("\n".join(lines(converted, "TRL")))
    ours = resolve(registry(), files=[file])
    assert (ours.model.path, ours.trainer.group_size, ours.model.lora.r) == ("Qwen/Qwen2-0.5B-Instruct", 8, 4)


SHAPES = {
    "positional": (
        'd = load_dataset("a/b", "main")\nGRPOTrainer("m/n", "r/m", GRPOConfig(learning_rate=0.5), d["train"])',
        {"model.path": "m/n", "reward.path": "r/m", "dataset.name": "a/b", "dataset.subset": "main"},
        [],
    ),
    "loaded model": (
        'model = AutoModelForCausalLM.from_pretrained("m/n", torch_dtype=torch.bfloat16, revision="v2")\n'
        'DPOTrainer(model, None, DPOConfig(beta=0.3), train_dataset=load_dataset("a/b", split="x"),'
        ' processing_class=AutoTokenizer.from_pretrained("m/n"))',
        {
            "model.path": "m/n",
            "model.dtype": "bfloat16",
            "model.revision": "v2",
            "loss.beta": 0.3,
            "dataset.split": "x",
        },
        [],
    ),
    "a split held out": (
        'd = load_dataset("a/b")\nSFTTrainer(model="m/n", train_dataset=d["train"], eval_dataset=d["test"])',
        {"dataset.split": "train", "dataset.heldout_split": "test"},
        [],
    ),
    "files": (
        'SFTTrainer("m/n", train_dataset=load_dataset("json", data_files="rows.jsonl", split="train"))',
        {"dataset.name": "rows.jsonl"},
        [],
    ),
    "settings in a mapping": (
        'kw = dict(model="m/n", args=SFTConfig(**{"learning_rate": 0.5}), train_dataset=load_dataset("a/b"))\n'
        "SFTTrainer(**kw)",
        {"model.path": "m/n", "trainer.optimizer.learning_rate": 0.5, "dataset.name": "a/b"},
        [],
    ),
    "renamed and derived classes": (
        "from trl import GRPOTrainer as Base, GRPOConfig as Settings\nclass Mine(Base):\n    pass\n"
        'Mine(model="m/n", args=Settings(beta=0.5))',
        {"model.path": "m/n", "trainer.kl.coefficient": 0.5},
        ["dataset.name", "reward.name"],
    ),
    "argparse": (
        'p = argparse.ArgumentParser()\np.add_argument("--model", default="m/n")\na = p.parse_args()\n'
        "GRPOTrainer(model=a.model, reward_funcs=f, args=GRPOConfig(learning_rate=a.lr, beta=0.5),"
        ' train_dataset=load_dataset(a.data, split="train"))',
        {"trainer.kl.coefficient": 0.5},
        ["model.path", "dataset.name", "reward.name", "trainer.optimizer.learning_rate"],
    ),
    "TrlParser": (
        "parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))\n"
        "script_args, training_args, model_args = parser.parse_args_and_config()\n"
        "dataset = load_dataset(script_args.dataset_name)\n"
        "GRPOTrainer(model=model_args.model_name_or_path, reward_funcs=[f], args=training_args,"
        ' train_dataset=dataset[script_args.dataset_train_split], eval_dataset=dataset["test"])',
        {},
        ["model.path", "dataset.name", "dataset.heldout", "reward.name", "trainer.optimizer.learning_rate"],
    ),
    "rows that the script changes": (
        'd = load_dataset("a/b", split="train")\nd = d.map(f)\nSFTTrainer("m/n", train_dataset=d)',
        {"model.path": "m/n"},
        ["dataset.name"],
    ),
    "rows that the script makes": (
        'SFTTrainer("m/n", train_dataset=Dataset.from_list(rows))',
        {"model.path": "m/n"},
        ["dataset.name"],
    ),
    "rows that the script chooses": (
        'SFTTrainer("m/n", train_dataset=load_dataset("a/b", split="train").filter(f).select(range(9)))',
        {"model.path": "m/n"},
        ["dataset.name"],
    ),
    "a name bound twice": (
        'M = "a/small"\nif big:\n    M = "a/big"\nSFTTrainer(M, train_dataset=load_dataset("a/b"))',
        {"dataset.name": "a/b"},
        ["model.path"],
    ),
    "a template": (
        'tokenizer.chat_template = "{% for m in messages %}{{ m }}{% endfor %}"\n'
        'SFTTrainer("m/n", train_dataset=load_dataset("a/b"), processing_class=tokenizer)',
        {"dataset.name": "a/b"},
        ["model.chat_template", "model.path"],
    ),
    "another tokenizer": (
        'SFTTrainer("m/n", train_dataset=load_dataset("a/b"), processing_class=AutoTokenizer.from_pretrained("o/p"))',
        {"dataset.name": "a/b"},
        ["model.path"],
    ),
    "a loss of its own": (
        'SFTTrainer("m/n", train_dataset=load_dataset("a/b"), formatting_func=f)',
        {"model.path": "m/n"},
        ["dataset.name"],
    ),
    "an adapter that is computed": (
        'SFTTrainer("m/n", train_dataset=load_dataset("a/b"), peft_config=get_peft_config(model_args))',
        {"model.path": "m/n"},
        ["model.lora.r"],
    ),
    "tools": (
        'GRPOTrainer("m/n", "r/m", train_dataset=load_dataset("a/b"), tools=[search])',
        {"reward.path": "r/m"},
        ["agent.name"],
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_of_scripts(tmp_path: Path, shape: str) -> None:
    text, expected, left_open = SHAPES[shape]
    converted = translated(tmp_path, text)
    assert {key: value_at(converted.config, key) for key in expected} == expected
    assert sorted(unfilled(converted.config)) == sorted(left_open)
    assert converted.problems == []
    if left_open:
        file = tmp_path / "ours.yaml"
        file.write_text("\n".join(lines(converted, "TRL")))
        with pytest.raises(ConfigError, match="not filled in") as caught:
            resolve(registry(), files=[file])
        assert sorted(caught.value.what.removeprefix("not filled in: ").split(", ")) == sorted(left_open)


TWICE = """
sft = SFTTrainer(model="a/one", args=SFTConfig(learning_rate=0.1), train_dataset=load_dataset("d/one"))
dpo = DPOTrainer(model="a/two", args=DPOConfig(learning_rate=0.2), train_dataset=load_dataset("d/two"))
"""


@pytest.mark.parametrize(
    ("wanted", "rate", "other"), [(None, 0.1, "DPO"), ("SFTConfig", 0.1, "DPO"), ("DPOConfig", 0.2, "SFT")]
)
def test_of_several_trainers_one_is_translated_and_the_others_are_named(
    tmp_path: Path, wanted: str | None, rate: float, other: str
) -> None:
    converted = translated(tmp_path, TWICE, wanted=wanted)
    assert converted.config["trainer"]["optimizer"]["learning_rate"] == rate
    assert converted.config["model"]["path"] == ("a/one" if rate == 0.1 else "a/two")
    named = [row.key.split(" ")[0] for row in converted.rows if row.meaning == "unknown"]
    assert sorted(named) == [f"{other}Config", f"{other}Trainer"]


ZEPHYR = """
model_name_or_path: alignment-handbook/zephyr-7b-sft-full
torch_dtype: null
chat_template: "{% for message in messages %}{{ message.content }}{% endfor %}"
dataset_mixer: {HuggingFaceH4/ultrafeedback_binarized: 1.0}
dataset_splits: [train_prefs, test_prefs]
preprocessing_num_workers: 12
bf16: true
beta: 0.01
gradient_accumulation_steps: 2
gradient_checkpointing_kwargs: {use_reentrant: false}
learning_rate: 5.0e-7
lr_scheduler_type: cosine
max_length: 1024
num_train_epochs: 1
per_device_train_batch_size: 8
warmup_ratio: 0.1
"""


def test_a_recipe_of_the_alignment_handbook(tmp_path: Path) -> None:
    converted = translated(tmp_path, ZEPHYR, "zephyr.yaml", "DPOConfig")
    assert converted.config["model"]["path"] == "alignment-handbook/zephyr-7b-sft-full"
    assert converted.config["dataset"] == {
        "name": "HuggingFaceH4/ultrafeedback_binarized",
        "split": "train_prefs",
        "heldout_split": "test_prefs",
    }
    assert sorted(unfilled(converted.config)) == ["model.chat_template", "trainer.optimizer.warmup_steps"]
    assert [row.key for row in converted.rows if not (row.settings or row.note)] == []
    mixed = ZEPHYR.replace("binarized: 1.0}", "binarized: 0.5, other/data: 0.5}")
    assert value_at(translated(tmp_path, mixed, "zephyr.yaml", "DPOConfig").config, "dataset.name") == "???"


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "kto", "reward_model", "grpo", "rloo", "ppo"])
def test_nothing_that_is_not_named_is_filled_by_a_demonstration(algorithm: str) -> None:
    needs = ["dataset.name", "model.path", *(["reward.name"] if algorithm in ("grpo", "rloo", "ppo") else [])]
    for peer in PEERS:
        converted = convert(PeerConfig({"seed": 1}, "", {}), load_table(peer), registry(), algorithm)
        assert sorted(unfilled(converted.config)) == needs


ODD = (["a", "b"], {"a": 1}, "x", -3, 0.5, True, [1], {}, "???", float("nan"), [["a"]], 10**30)


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS)
def test_no_value_of_any_key_ends_a_translation(peer: str) -> None:
    table = load_table(peer)
    targets = Targets(registry(), {"trainer": "grpo"})
    for key in (entry.keys[0] for entry in table.entries):
        for value in ODD:
            case = Case({key: value}, "grpo", targets, 1)
            with contextlib.suppress(ConfigError):
                assert convert_key(case, table, key).key == key
