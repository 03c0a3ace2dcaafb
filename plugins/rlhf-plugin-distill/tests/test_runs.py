"""Whole runs of the pocket model, with a teacher in this process and behind a server; and what is refused."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_core.models import ModelConfig, load_policy
from rlhf_plugin_distill.config import DistillConfig, DistillOfflineConfig
from rlhf_plugin_distill.server import BadAnswer, TeacherServer
from rlhf_plugin_distill.teacher_config import TeacherSettings
from rlhf_plugin_distill.unscored import UnscoredConfig
from rlhf_plugin_pocket import weights_path
from rlhf_testing import check_reward, check_trainer

from .test_spans import save_byte_model

Command = Callable[..., tuple[int, str]]
SMALL = (
    "threads=1",
    "dataset=pocket/arithmetic",
    "dataset.limit=64",
    "trainer.steps=2",
    "trainer.rollout_batch_size=8",
    "trainer.micro_batch_size=4",
    "trainer.sampling.max_tokens=12",
    "trainer.eval_samples=2",
    "trainer.gold_samples=2",
)


def distill(command: Command, run: Path, *values: str, algo: str = "distill") -> tuple[int, str]:
    words = [word for value in (*SMALL, *values) for word in ("--set", value)]
    if algo != "distill":
        words = [word for value in (SMALL[:3] + values) for word in ("--set", value)]
    return command("train", "--algo", algo, "--model", "pocket", "--run-dir", run, *words)


def steps(run: Path) -> list[dict[str, Any]]:
    return [row for row in map(json.loads, (run / "metrics.jsonl").open()) if "grad_norm" in row]


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pocket model with other weights."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    shutil.copytree(weights_path(), folder)
    for file in folder.glob("manifest*"):
        file.unlink()
    weights = load_file(str(folder / "model.safetensors"))
    generator = torch.Generator().manual_seed(0)
    for name, weight in weights.items():
        weights[name] = weight + 0.04 * torch.randn(weight.shape, generator=generator).to(weight.dtype)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


class Served:
    """A stand-in for vLLM: tokenizes, and gives the log-probabilities of a model at every token of a prompt."""

    def __init__(self, folder: Path) -> None:
        loaded = load_policy(ModelConfig(path=str(folder)))
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.most, self.calls, self.fail_after, self.shift, self.context = 20, 0, 1 << 30, 0, 512
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer({"data": [{"id": "teacher", "max_model_len": served.context}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/tokenize":
                    ids = served.tokenizer.encode(body["prompt"], add_special_tokens=False)
                    self.answer({"tokens": [i + served.shift for i in ids]})
                    return
                served.calls += 1
                if served.calls > served.fail_after:
                    self.send_error(503)
                    return
                self.answer({"choices": [{"prompt_logprobs": served.logprobs(body)}]})

            def answer(self, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @torch.no_grad()
    def logprobs(self, body: Any) -> list[Any]:
        rows = self.model(input_ids=torch.tensor([body["prompt"]])).logits[0].log_softmax(-1)
        count = min(self.most, body["prompt_logprobs"])
        given = [None]
        for row, token in zip(rows[:-1], body["prompt"][1:]):
            ids = [token, *row.topk(count).indices.tolist()]
            given.append({str(i): {"logprob": row[i].item()} for i in ids})
        return given


@pytest.fixture
def served(teacher: Path) -> Iterator[Served]:
    one = Served(teacher)
    yield one
    one.server.shutdown()
    one.server.server_close()


@pytest.mark.slow
def test_the_student_comes_nearer_the_teacher(command: Command, tmp_path: Path, teacher: Path) -> None:
    size = ("trainer.steps=12", "trainer.rollout_batch_size=32", "trainer.optimizer.learning_rate=3e-4")
    more = (*size, "loss.name=jsd", f"trainer.teacher={teacher}")
    code, err = distill(command, tmp_path / "run", *more)
    assert code == 0, err
    losses = [row["loss"] for row in steps(tmp_path / "run")]
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])
    assert "drift/mean_abs" in steps(tmp_path / "run")[0], "the engine's logprobs are the trainer's"
    assert steps(tmp_path / "run")[0]["drift/mean_abs"] < 1e-4


def test_its_own_teacher_teaches_nothing_but_by_its_context(command: Command, tmp_path: Path) -> None:
    code, err = distill(command, tmp_path / "alone", "trainer.teacher=pocket")
    assert code == 0, err
    assert max(abs(row["loss"]) for row in steps(tmp_path / "alone")) < 1e-5
    code, err = distill(
        command, tmp_path / "told", "trainer.teacher.path=pocket", 'trainer.teacher.context="{prompt} It is {answer}."'
    )
    assert code == 0, err
    assert steps(tmp_path / "told")[0]["loss"] > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("more", [("model.lora.r=4",), ("trainer.packing=off", "trainer.share_prefix=false")])
def test_lora_and_padding(more: tuple[str, ...], command: Command, tmp_path: Path, teacher: Path) -> None:
    code, err = distill(command, tmp_path / "plain", f"trainer.teacher={teacher}")
    assert code == 0, err
    code, err = distill(command, tmp_path / "run", f"trainer.teacher={teacher}", *more)
    assert code == 0, err
    first, other = steps(tmp_path / "plain")[0], steps(tmp_path / "run")[0]
    assert other["loss"] == pytest.approx(first["loss"], rel=1e-4)


@pytest.mark.parametrize("algo", ["distill", "distill_offline"])
def test_a_server_teaches_as_its_model_does(
    algo: str, command: Command, tmp_path: Path, teacher: Path, served: Served
) -> None:
    size = () if algo == "distill" else ("trainer.max_steps=2", "trainer.batch_size=8", "trainer.eval_samples=2")
    here = (f"trainer.teacher.path={teacher}", "trainer.teacher.top_k=6", *size)
    code, err = distill(command, tmp_path / "here", *here, algo=algo)
    assert code == 0, err
    there = (f"trainer.teacher.url={served.url}/v1", "trainer.teacher.top_k=6", *size)
    code, err = distill(command, tmp_path / "there", *there, algo=algo)
    assert code == 0, err
    losses = [[row["loss"] for row in steps(tmp_path / name)] for name in ("here", "there")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=1e-6)
    assert losses[0][0] > 0


@pytest.mark.parametrize("row", [None, {}, {"5": {}}, {"5": {"logprob": None}}, {"5": {"logprob": "x"}}, [1]])
def test_an_answer_that_a_server_changes_to_is_named(row: Any, served: Served) -> None:
    server = TeacherServer(TeacherSettings(url=served.url, top_k=1))
    vars(served)["logprobs"] = lambda body: [None, row]
    for ask in (server.chosen, server.likeliest):
        with pytest.raises(BadAnswer, match="log-probabilities"):
            ask([3], [5])
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["distill", "distill_offline"])
def test_a_server_of_another_tokenizer_teaches_as_its_model_does(algo: str, command: Command, tmp_path: Path) -> None:
    folder, losses = save_byte_model(tmp_path / "bytes"), list[list[float]]()
    served = Served(folder)
    size = () if algo == "distill" else ("trainer.max_steps=2", "trainer.batch_size=8", "trainer.eval_samples=2")
    other = (f"trainer.teacher.path={folder}", "trainer.teacher.tokenizer=other", *size)
    for n, more in enumerate(((), (f"trainer.teacher.url={served.url}",))):
        if more:  # its tokenizer alone is read
            (folder / "model.safetensors").unlink()
        code, err = distill(command, tmp_path / f"run{n}", *other, *more, algo=algo)
        assert code == 0, err
        losses.append([row["loss"] for row in steps(tmp_path / f"run{n}")])
        assert all(row["teacher/aligned"] > 0.9 for row in steps(tmp_path / f"run{n}"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-6)
    assert losses[0][0] > 0
    served.context = 40
    code, err = distill(command, tmp_path / "long", *other, f"trainer.teacher.url={served.url}", algo=algo)
    assert code == 2, err
    assert "do not fit its 39" in err
    served.shift = 1
    code, err = distill(command, tmp_path / "shifted", *other, f"trainer.teacher.url={served.url}", algo=algo)
    assert code == 2, err
    assert "another vocabulary" in err
    served.server.shutdown()
    served.server.server_close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"most": 3}, "log-probabilities for a token, not the 6"),
        ({"shift": 1}, "another vocabulary"),
        ({"fail_after": 0}, "answered 503"),
    ],
)
def test_a_server_that_cannot_teach_is_refused_before_anything_is_loaded(
    change: dict[str, Any], said: str, command: Command, tmp_path: Path, served: Served
) -> None:
    vars(served).update(change)
    code, err = distill(command, tmp_path / "run", f"trainer.teacher.url={served.url}", "trainer.teacher.top_k=6")
    assert code == 2, err
    assert said in err
    assert served.url in err
    assert not (tmp_path / "run").exists()


def test_a_server_that_dies_in_a_run_ends_it(command: Command, tmp_path: Path, served: Served) -> None:
    served.fail_after = 6
    code, err = distill(command, tmp_path / "run", f"trainer.teacher.url={served.url}", "trainer.teacher.top_k=6")
    assert code == 1
    assert "does not answer" in err
    assert "--resume" in err


def other_vocabulary(folder: Path) -> None:
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    vocabulary = data["model"]["vocab"]
    names = list(vocabulary)[-2:]
    vocabulary[names[0]], vocabulary[names[1]] = vocabulary[names[1]], vocabulary[names[0]]
    file.write_text(json.dumps(data))


def not_finite(folder: Path) -> None:
    weights = load_file(str(folder / "model.safetensors"))
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "said"), [(other_vocabulary, "has another vocabulary than the student"), (not_finite, "NaN")]
)
def test_a_folder_that_cannot_teach_is_refused(
    damage: Callable[[Path], None], said: str, command: Command, tmp_path: Path, teacher: Path
) -> None:
    shutil.copytree(teacher, tmp_path / "bad")
    damage(tmp_path / "bad")
    code, err = distill(command, tmp_path / "run", f"trainer.teacher={tmp_path / 'bad'}")
    assert code == 2, err
    assert said in err
    assert str(tmp_path / "bad") in err


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((), "distillation needs a teacher"),
        (("trainer.teacher=nowhere/at/all",), "there is no model folder 'nowhere/at/all'"),
        (("trainer.teacher=http://127.0.0.1:9",), "/v1/models"),
        (("trainer.teacher=http://me:word@host",), "is not an address"),
        (("trainer.teacher=pocket", "loss.name=jsd", "loss.beta=1.5"), "loss.beta"),
        (("trainer.teacher=pocket", "loss.temperature=0"), "loss.temperature"),
        (("trainer.teacher.url=http://127.0.0.1:9", "trainer.teacher.top_k=5", "loss.temperature=2"), "temperature 1"),
        (("trainer.teacher.url=http://127.0.0.1:9",), "does not give"),
        (("trainer.teacher.url=http://127.0.0.1:9", "trainer.teacher.tokenizer=other"), "needs the tokenizer"),
        (("trainer.teacher.path=pocket", "trainer.teacher.top_k=99999"), "not less than the vocabulary"),
        (("trainer.teacher.path=pocket", "trainer.teacher.context=Say {answer}"), "has no {prompt}"),
        (("trainer.teacher.path=pocket", 'trainer.teacher.context="{prompt} {clue}"'), "asks for {clue}"),
        (("trainer.teacher=pocket", "trainer.kl.coefficient=0.1"), "trainer.kl has no effect"),
        (("trainer.teacher=pocket", "trainer.trace_every=0"), "trainer.trace_every has no effect"),
        (
            (
                "trainer.teacher=pocket",
                "trainer.schedules=[{setting: trainer.sampling.temperature, to: 0.5, end: 2}]",
            ),
            "trainer.schedules has no effect",
        ),
        (("trainer.teacher=pocket", "loss.name=cross_entropy"), "consumes labels"),
    ],
)
def test_what_cannot_work_is_refused(values: tuple[str, ...], said: str, command: Command, tmp_path: Path) -> None:
    code, err = distill(command, tmp_path / "run", *values)
    assert (code, said in err) == (2, True), err


@pytest.mark.slow
def test_shards_of_two_ranks_learn_what_one_process_does(command: Command, tmp_path: Path, teacher: Path) -> None:
    losses: list[list[float]] = []
    for name, words in (("one", ()), ("two", ("--nproc", "2", "--set", "strategy.name=fsdp"))):
        values = [word for value in (*SMALL, f"trainer.teacher={teacher}") for word in ("--set", value)]
        code, err = command("train", "--algo", "distill", "--run-dir", tmp_path / name, *values, *words)
        assert code == 0, err
        losses.append([row[key] for row in steps(tmp_path / name) for key in ("loss", "grad_norm")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("config", [DistillConfig, DistillOfflineConfig])
def test_the_trainers_conform(config: Any) -> None:
    check_trainer(config(teacher=TeacherSettings(path="pocket")))


def test_no_reward_conforms() -> None:
    check_reward(UnscoredConfig())
