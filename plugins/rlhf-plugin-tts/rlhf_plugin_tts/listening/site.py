"""What the listening server answers: a page, the trials, their sounds; and it takes answers."""

from __future__ import annotations

import json
import mimetypes
from functools import cache
from importlib.resources import files
from typing import Any

from rlhf_core.data import DatasetError
from rlhf_plugin_dashboard.site import Answer, text
from rlhf_plugin_tts.listening.answers import PAIRS, Answers

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "media-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = {"": ("listen.html", "text/html"), "serve.js": ("serve.js", "text/javascript")}
OF_REPORT = {
    **dict.fromkeys(("tools.js", "sound.js", "listen.js"), "text/javascript"),
    "page.css": "text/css",
}
"""Files of the run's page, which has the same comparison inside."""


class ListeningSite:
    """A site for :class:`rlhf_plugin_dashboard.serve.Dashboard`."""

    command = "rlhf tts listen"

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    def answer(self, path: str, query: Any) -> Answer:
        if path in FILES or path in OF_REPORT:
            return _asset(path)
        if path == "api/trials":
            return _json(self.state())
        kind, _, rest = path.partition("/")
        trial, _, side = rest.partition("/")
        if kind == "sound" and trial in self.answers.trials and side in ("0", "1"):
            file = self.answers.trials[trial].sides[int(side)].file
            mime = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            return Answer(file.read_bytes(), mime, policy=POLICY)
        return text(f"there is no '{path}' here", 404)

    def post(self, path: str, body: bytes) -> Answer:
        try:
            answer = json.loads(body)
            if path != "api/answers" or not isinstance(answer, dict):
                return text(f"nothing can be sent to '{path}'", 404)
            self.answers.add(answer)
        except (ValueError, DatasetError) as error:
            return text(str(error), 400)
        return _json({"answered": len(self.answers.of_listener())})

    def state(self) -> dict[str, Any]:
        trials = [
            {
                "id": trial.id,
                "kind": trial.kind,
                "prompt": trial.said("user"),
                "voice": trial.said("system"),
                "sides": [{"url": f"sound/{trial.id}/{n}", "label": side.label} for n, side in enumerate(trial.sides)],
            }
            for trial in self.answers.trials.values()
        ]
        note = f"{self.answers.listener}: answers are written to {self.answers.folder / PAIRS}"
        return {"trials": trials, "seed": self.answers.seed, "answers": self.answers.of_listener(), "place": note}


@cache
def _asset(path: str) -> Answer:
    if path in OF_REPORT:
        body = (files("rlhf_plugin_report") / "templates" / path).read_bytes()
        return Answer(body, OF_REPORT[path], policy=POLICY)
    name, kind = FILES[path]
    return Answer((files("rlhf_plugin_tts.listening") / "templates" / name).read_bytes(), kind, policy=POLICY)


def _json(value: Any) -> Answer:
    return Answer(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"), "application/json", policy=POLICY)
