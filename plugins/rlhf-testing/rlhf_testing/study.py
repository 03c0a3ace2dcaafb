"""Conformance of studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlhf_core.config import Registry, RlhfError
from rlhf_study.config import StudyConfig
from rlhf_testing.config import built, check_config
from rlhf_testing.report import require
from rlhf_testing.samples import make_context


def check_study(config: StudyConfig, folder: Path | None = None) -> None:
    """Check a study: its Config, its smoke settings, and with a ``folder`` that these run, give JSON and a table, and
    give the same figures when what is there is used again.

    Args:
        folder: an empty folder to run the smoke settings in; None runs nothing.
    """
    check_config(config, "study")
    built(config, "study", make_context())
    try:
        small: Any = type(config).model_validate(dict(config.smoke), context={"registry": Registry(disabled=())})
        problem = ""
    except (ValidationError, RlhfError) as error:
        small, problem = config, str(error)
    require(not problem, config, "its smoke settings are settings", problem)
    if folder is None:
        return
    study = built(small, "study", make_context())
    figures = json.loads(json.dumps(dict(study.run(0, folder)), allow_nan=False))
    require(bool(study.table({0: figures}).strip()), config, "table() makes a text of the figures", "it is empty")
    again = json.loads(json.dumps(dict(study.run(0, folder))))
    require(again == figures, config, "what is done in the folder is used again", f"{again} after {figures}")
