"""Pictures of the page and of the dashboard, from real runs on the pocket model, as docs/pictures/*.png.

python -m scripts.docs.pictures              # trains two runs (some minutes) and takes all pictures
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.chromium import missing, open_chromium, problems, show_as

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
RLHF = [sys.executable, "-m", "rlhf_core.cli.main"]
TRAIN = ["train", "--algo", "grpo", "--reward", "ensemble", "--set", "threads=1"]
RUNS = {"first": ["--set", "trainer.steps=10"], "second": ["--set", "trainer.steps=10", "--set", "seed=1"]}
LOOK_AT = 5
"""Step of the second run at which the dashboard is looked at: the first is over, the second goes on."""
DESKTOP, PHONE = (1280, 860), (390, 844)
MOST_BYTES = 150_000


def start(name: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [*RLHF, *TRAIN, *RUNS[name], "--run-dir", str(folder / name)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def wait_for_step(run: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    rows = run / "metrics.jsonl"
    while process.poll() is None and (not rows.is_file() or f'"step": {step},' not in rows.read_text()):
        time.sleep(0.5)


@contextmanager
def dashboard(folder: Path) -> Generator[str, None, None]:
    command = [*RLHF, "dashboard", folder.name, "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder.resolve().parent) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def pictures_of(browser: Any, name: str, url: str, ready: str, scroll_to: str) -> None:
    """Desktop in light and dark, and phone; the phone's picture is of what stands at ``scroll_to``."""
    for kind, size, dark in (("desktop", DESKTOP, False), ("dark", DESKTOP, True), ("phone", PHONE, False)):
        show_as(browser, *size, dark=dark, phone=kind == "phone")
        browser.get("about:blank")
        browser.get(url)
        wait(browser, ready)
        if kind == "phone":
            browser.execute_script(f"document.querySelector('{scroll_to}').scrollIntoView()")
        time.sleep(3)  # charts come into view and are drawn
        save(PICTURES / f"{name}-{kind}.png", browser.get_screenshot_as_png())
        if errors := problems(browser):
            raise RuntimeError(f"{name} ({kind}) logs errors: {errors}")
    browser.get("about:blank")  # the dashboard is about to end, and its page would miss it


def wait(browser: Any, condition: str) -> None:
    """Until an expression of the page is true."""
    end = time.monotonic() + 60
    while not browser.execute_script(f"return {condition}"):
        if time.monotonic() > end:
            raise TimeoutError(f"never true: {condition}; {problems(browser)}")
        time.sleep(0.1)


def save(file: Path, png: bytes) -> None:
    """With as many colours as fit into :data:`MOST_BYTES`."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        image.quantize(colours, dither=Image.Dither.NONE).save(file, optimize=True)
        if file.stat().st_size < MOST_BYTES:
            print(f"{file.relative_to(ROOT)}: {file.stat().st_size} bytes, {colours} colours")
            return
    raise ValueError(f"{file} is larger than {MOST_BYTES} bytes with 32 colours too")


def main() -> None:
    if missing():
        raise SystemExit(missing())
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "runs"
        start("first", folder).wait()
        second = start("second", folder)
        try:
            wait_for_step(folder / "second", LOOK_AT, second)
            take(folder)
        finally:
            second.terminate()
            second.wait()


def take(folder: Path) -> None:
    browser = open_chromium()
    try:
        with dashboard(folder) as url:
            ready = "document.getElementById('state').textContent === 'live'"
            pictures_of(browser, "dashboard", f"{url}#second&first", ready, "#runs")
        take_report(browser, folder / "first")
    finally:
        browser.quit()


def take_report(browser: Any, run: Path) -> None:
    """Pictures of a run's page, which is written anew."""
    folder = run.resolve().parent
    name = f"{folder.name}/{run.name}"
    subprocess.run([*RLHF, "report", name], check=True, stdout=subprocess.DEVNULL, cwd=folder.parent)
    ready = "document.querySelectorAll('figure .bk-Figure').length > 1"
    pictures_of(browser, "report", (run.resolve() / "report.html").as_uri(), ready, "#rollouts")


if __name__ == "__main__":
    main()
