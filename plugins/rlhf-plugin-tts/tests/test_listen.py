"""`rlhf tts listen`: what is compared, who may answer, and pairs that a reward is trained on."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import DatasetError
from rlhf_plugin_dashboard.serve import Dashboard
from rlhf_plugin_tts.listening.answers import Answers
from rlhf_plugin_tts.listening.site import ListeningSite
from rlhf_plugin_tts.listening.trials import Trial, trials_of_pairs, trials_of_runs
from rlhf_plugin_tts.rows import read_audio_pairs
from tests.waiting import wait_for

Voice = Callable[..., Path]


@pytest.fixture
def pairs(tmp_path: Path, voice: Voice) -> str:
    """Eight rows, as `rlhf data speech` writes them."""
    rows = []
    for n in range(8):
        sounds = {
            "chosen_audio": voice(f"clips/good{n}.wav", hz=200 + n, seconds=0.5),
            "rejected_audio": voice(f"clips/bad{n}.wav", hz=200 + n, noise=0.3 + n / 50, seconds=0.5),
        }
        turns = [{"role": "system", "content": "calm"}, {"role": "user", "content": f"Say {n}."}]
        texts = {"chosen": f"hh c{n}", "rejected": f"hh e{n}"}
        rows.append({"id": str(n), "prompt": turns, **texts, **{k: str(v) for k, v in sounds.items()}})
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def site(pairs: str, tmp_path: Path) -> Iterator[Dashboard]:
    server = Dashboard(ListeningSite(Answers(tmp_path / "heard", trials_of_pairs(pairs), "anna")), 0)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def asked(url: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_answers_are_taken_from_the_page_alone_and_become_pairs(site: Dashboard, pairs: str, tmp_path: Path) -> None:
    state = json.loads(asked(f"{site.url}api/trials")[1])
    assert [(t["prompt"], t["voice"]) for t in state["trials"]][:2] == [("Say 0.", "calm"), ("Say 1.", "calm")]
    given = read_audio_pairs(pairs)
    for n, (trial, pair) in enumerate(zip(state["trials"], given, strict=True)):
        sounds = [asked(site.url + side["url"])[1] for side in trial["sides"]]
        assert sounds == [pair.chosen.read_bytes(), pair.rejected.read_bytes()], n
    origin = {"Origin": site.url[: site.url.index("/", 7)]}
    first = {"id": state["trials"][0]["id"], "answer": "A", "first": 0}
    answers = f"{site.url}api/answers"
    assert asked(answers, first)[0] == 403
    assert asked(answers, first, Origin="http://elsewhere.example")[0] == 403
    assert asked(answers.replace(site.token, "x" * 32), first, **origin)[0] == 403
    assert asked(answers, {**first, "id": "nothing"}, **origin)[0] == 400
    assert asked(answers, {**first, "first": 2}, **origin)[0] == 400
    assert asked(answers, {**first, "id": "x" * 70_000}, **origin)[0] == 413
    assert not (tmp_path / "heard").exists()
    for n, trial in enumerate(state["trials"]):
        answer = {"id": trial["id"], "answer": "tie" if n == 7 else "A" if n % 2 else "B", "first": int(n % 3 == 0)}
        assert asked(answers, answer, **origin)[0] == 200
    assert asked(answers, {**first, "id": state["trials"][1]["id"], "answer": "B"}, **origin)[0] == 200
    kept = [json.loads(line) for line in (tmp_path / "heard" / "answers.jsonl").read_text().splitlines()]
    assert len(kept) == 9
    rows = read_audio_pairs(str(tmp_path / "heard" / "pairs.jsonl"))
    # by hand: A is side `first`, B the other one; the second answer to trial 1 (B, first 0) counts
    chose = [0, 1, 1, 1, 1, 0, 0]
    sides = [(pair.chosen, pair.rejected) for pair in given]
    wanted = [(sides[n][c].resolve(), sides[n][1 - c].resolve()) for n, c in enumerate(chose)]
    assert [(row.chosen.resolve(), row.rejected.resolve()) for row in rows] == wanted
    texts = [json.loads(line) for line in (tmp_path / "heard" / "pairs.jsonl").read_text().splitlines()]
    assert [row["chosen"] for row in texts] == [f"hh {'ce'[c]}{n}" for n, c in enumerate(chose)]


def test_it_goes_on_where_it_was_ended_for_each_listener(pairs: str, tmp_path: Path) -> None:
    trials = trials_of_pairs(pairs)
    anna = Answers(tmp_path / "heard", trials, "anna")
    anna.add({"id": trials[0].id, "answer": "A", "first": 1})
    again, ben = (Answers(tmp_path / "heard", trials, name) for name in ("anna", "ben"))
    assert list(again.of_listener()) == [trials[0].id]
    assert again.seed == anna.seed != ben.seed
    assert not ben.of_listener()
    ben.add({"id": trials[0].id, "answer": "B", "first": 1})
    assert [row["listener"] for row in ben.pairs()] == ["anna", "ben"]
    fewer = Answers(tmp_path / "heard", trials[1:], "anna")
    assert fewer.pairs() == []
    fewer.add({"id": trials[1].id, "answer": "A", "first": 0})
    assert len((tmp_path / "heard" / "answers.jsonl").read_text().splitlines()) == 3


def test_two_runs_are_compared_on_the_prompts_that_both_have(tmp_path: Path, voice: Voice) -> None:
    for name, hz in (("grpo", 150), ("dpo", 250)):
        rows = []
        for step, prompts in ((0, "ab"), (4, "abc" if name == "dpo" else "ab")):
            for prompt in prompts:
                sound = voice(f"{name}/audio/{prompt}{step}.wav", hz=hz + step, seconds=0.2)
                media = [{"kind": "audio", "path": f"/gone/{sound.name}"}]
                rows.append({"step": step, "prompt_id": prompt, "prompt": f"Say {prompt}.", "media": media})
        (tmp_path / name / "plan.json").write_text('{"config": {}}')
        (tmp_path / name / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trials = trials_of_runs([str(tmp_path / "grpo"), str(tmp_path / "dpo")])
    shown = [[f"{side.label} {side.file.relative_to(tmp_path)}" for side in trial.sides] for trial in trials]
    assert shown == [[f"grpo grpo/audio/{p}4.wav", f"dpo dpo/audio/{p}4.wav"] for p in "ab"]
    alone = trials_of_runs([str(tmp_path / "grpo")])
    assert [[side.label for side in trial.sides] for trial in alone] == [["step 0", "step 4"]] * 2
    same = replace(alone[0].sides[1], file=alone[0].sides[0].file)
    with pytest.raises(DatasetError, match="no two different sounds"):
        trials_of_runs([str(tmp_path / "grpo"), str(tmp_path / "grpo")])
    assert Trial("", "", (alone[0].sides[0], same)).id != alone[0].id


def test_nothing_to_compare_and_a_wrong_command_are_told(rlhf: Any, tmp_path: Path) -> None:
    for arguments, words in (
        ((), "a run, two runs, or --pairs"),
        (("a", "b", "c"), "a run, two runs, or --pairs"),
        (("nowhere",), "nowhere"),
        (("--pairs", str(tmp_path / "none.jsonl")), "none.jsonl"),
    ):
        done = rlhf("tts", "listen", *arguments)
        assert done.code == 2, done.err
        assert words in done.err


@pytest.mark.slow
def test_a_reward_is_trained_on_what_listeners_preferred(pairs: str, tmp_path: Path, rlhf: Any) -> None:
    trials = trials_of_pairs(pairs)
    answers = Answers(tmp_path / "heard", trials, "anna")
    for n, trial in enumerate(trials):  # whichever is A, the noisy one
        answers.add({"id": trial.id, "answer": "AB"[n % 2], "first": 1 - n % 2})
    command = ["tts", "train-reward", "--pairs", str(tmp_path / "heard" / "pairs.jsonl"), "--json"]
    done = rlhf(*command, "--heldout-fraction", "0.4", "--output", str(tmp_path / "taste"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["heldout"]["accuracy"] == 1.0


@pytest.mark.slow
def test_the_page_of_the_server_is_answered_in_a_browser(browser: Any, site: Dashboard, tmp_path: Path) -> None:
    def wait(condition: str) -> None:
        wait_for(lambda: browser.execute_script(f"return {condition}"), condition, 20)

    browser.get(site.url)
    wait("document.querySelector('#listen button')")
    browser.find_element("css selector", "#listen button").click()
    for key in "12":
        wait("!document.querySelector('#listen .playing')")
        browser.switch_to.active_element.send_keys(key)
        wait("document.querySelector('#listen .playing')")
    wait("!document.querySelector('#listen .answer').disabled")
    browser.switch_to.active_element.send_keys("t")
    wait("document.querySelector('#listen .meta').textContent.startsWith('2 of 8')")
    (row,) = map(json.loads, (tmp_path / "heard" / "answers.jsonl").read_text().splitlines())
    assert (row["answer"], row["listener"]) == ("tie", "anna")
    browser.get(site.url)
    wait("document.querySelector('#listen button')")
    assert "(1 of 8 answered)" in browser.find_element("css selector", "#listen button").text


def test_pairs_are_those_of_all_servers_and_of_what_is_compared_now(pairs: str, tmp_path: Path) -> None:
    trials, folder = trials_of_pairs(pairs), tmp_path / "heard"
    anna, ben = (Answers(folder, trials[:4], name) for name in ("anna", "ben"))
    for answers in (anna, ben):
        answers.add({"id": trials[0].id, "answer": "A", "first": 0})
    assert len(read_audio_pairs(str(folder / "pairs.jsonl"))) == 2
    Answers(folder, trials[4:], "anna").add({"id": trials[4].id, "answer": "A", "first": 0})
    assert Answers(folder, trials[:4], "anna").write_pairs() == 2
    assert len(read_audio_pairs(str(folder / "pairs.jsonl"))) == 2


def test_an_answer_after_half_a_row_is_kept(pairs: str, tmp_path: Path) -> None:
    trials, folder = trials_of_pairs(pairs), tmp_path / "heard"
    folder.mkdir()
    (folder / "answers.jsonl").write_text('{"id": "half a')
    Answers(folder, trials, "anna").add({"id": trials[0].id, "answer": "A", "first": 0})
    assert list(Answers(folder, trials, "anna").of_listener()) == [trials[0].id]


def test_an_answer_belongs_to_the_sounds_and_not_to_their_names(pairs: str, tmp_path: Path) -> None:
    before = trials_of_pairs(pairs)[0]
    name, aside = before.id, before.sides[0].file.with_suffix(".moved.wav")
    moved = replace(before, sides=(replace(before.sides[0], file=before.sides[0].file.rename(aside)), before.sides[1]))
    assert moved.id == name
    aside.write_bytes(trials_of_pairs_file(moved).read_bytes())
    assert moved.id != name


def trials_of_pairs_file(trial: Trial) -> Path:
    """The other side's file."""
    return trial.sides[1].file
