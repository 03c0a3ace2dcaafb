"""A chat template is code of the model's folder: it ends in time, or the model is refused."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.models import template_deadline, tool_templates
from rlhf_core.models.chat_templates import NAMED
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.models.sources import resolve_model
from rlhf_core.models.template_deadline import check_ends
from rlhf_core.models.tool_templates import limited
from rlhf_core.types.errors import ModelError

TURN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "nested loops": LOOPS,
    "where nothing is asked for": "{% if not add_generation_prompt %}" + LOOPS + "{% endif %}",
    "in a long conversation": "{% if messages|length > 5 %}" + LOOPS + "{% endif %}",
    "over the letters of a text": TURN
    + "{% for m in messages %}"
    + "".join(f"{{% for c{n} in m.content %}}" for n in range(3))
    + "{% endfor %}" * 4,
    "where there are tools": "{% if tools %}" + LOOPS + "{% endif %}",
    "a filter": "{% for a in range(99999) %}{{ range(99999)|sum }}{% endfor %}",
    "a macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "random words": "{{ lipsum(n=10 ** 7) }}",
    "a power": "{{ 9 ** (9 ** 9) }}",
}
LARGE = {
    "a long text": "{{ 'x' * 10 ** 10 }}",
    "doubled": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "joined": "{{ ([('x' * 10 ** 7)] * 10 ** 5)|join }}",
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One second of processor time is enough to tell."""
    for module in (template_deadline, tool_templates):
        monkeypatch.setattr(module, "CPU_S", 1)
    template_deadline._problem.cache_clear()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("template", [*ENDLESS.values(), *LARGE.values()], ids=[*ENDLESS, *LARGE])
def test_a_template_that_does_not_end_is_refused(template: str) -> None:
    with pytest.raises(ModelError, match="the chat template of 'their/model' does not end in time") as caught:
        check_ends(TURN + template, "their/model")
    assert "for a few turns" in str(caught.value)
    with pytest.raises(ModelError):
        check_ends({"default": TURN, "tool_use": TURN + template}, "their/model")


@pytest.mark.usefixtures("quick")
def test_time_is_limited_where_memory_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, whose ``setrlimit`` refuses RLIMIT_AS."""
    no_memory_limit = "import resource\nresource.RLIMIT_AS = 99\n"
    monkeypatch.setattr(template_deadline, "TRIAL", no_memory_limit + template_deadline.TRIAL)
    with pytest.raises(ModelError, match="does not end in time"):
        check_ends(LOOPS, "their/model")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("place", ["chat_template.jinja", "setting"])
def test_the_model_and_the_setting_are_named(tmp_path: Path, place: str) -> None:
    folder = Path(shutil.copytree(resolve_model("pocket").path, tmp_path / "model"))
    (tmp_path / "mine.jinja").write_text(TURN + LOOPS)
    if place == "setting":
        config = ModelConfig(path=str(folder), chat_template=str(tmp_path / "mine.jinja"))
    else:
        shutil.copy(tmp_path / "mine.jinja", folder / place)
        config = ModelConfig(path=str(folder))
    with pytest.raises(ModelError, match="'model.chat_template'" if place == "setting" else f"'{folder}'"):
        load_tokenizer(config)


ONLY_FOR = "{% for m in messages %}{% if 'xyzzy' in m.content %}" + LOOPS + "{% endif %}{% endfor %}"
ASKS = TURN + ONLY_FOR + "{% if add_generation_prompt %}assistant: {% endif %}"


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("asked", ["xyzzy", "say xyzzy"])
def test_a_row_on_which_the_template_does_not_end_is_named(tmp_path: Path, asked: str) -> None:
    folder = Path(shutil.copytree(resolve_model("pocket").path, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text(ASKS)
    formatter = Formatter(load_tokenizer(ModelConfig(path=str(folder))), "chat")
    handler = signal.getsignal(signal.SIGVTALRM)
    assert formatter.encode([{"role": "user", "content": "What is 2 + 3?"}])
    for call in (
        lambda: formatter.encode([{"role": "user", "content": asked}]),
        lambda: formatter.encode_reply([{"role": "user", "content": "hello"}], asked),
    ):
        with pytest.raises(ModelError, match=f"template of '{folder}' does not end in time") as caught:
            call()
        assert f"ends with '{asked}'" in str(caught.value)
    assert signal.getsignal(signal.SIGVTALRM) == handler
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_what_other_threads_compute_is_not_the_templates() -> None:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(10_000))

    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        with limited("m", "turn"):
            ends = time.monotonic() + 2.5
            while time.monotonic() < ends:
                time.sleep(0.05)
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "template", [*NAMED.values(), TURN, "{{ raise_exception('no') }}", "{{ nothing.at.all }}", "{%"]
)
def test_others_are_left_to_whoever_renders(template: str) -> None:
    check_ends(template, "mine")
    check_ends(None, "mine")


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(2, 12), min_size=1, max_size=3), st.booleans())
def test_loops_that_end_are_allowed(sizes: list[int], prompts: bool) -> None:
    head = "".join(f"{{% for i{n} in range({size}) %}}" for n, size in enumerate(sizes))
    check_ends(
        TURN + head + "x" + "{% endfor %}" * len(sizes) + ("{% if add_generation_prompt %}a{% endif %}" * prompts), "m"
    )
