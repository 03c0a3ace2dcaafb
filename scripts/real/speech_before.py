"""How far one draw of the untrained voice lies from another: the part of a gain that every arm of the study shares.

    python -m scripts.real.speech_before --record docs/bench/speech_before.json

`scripts.real.speech_training` lets the untrained voice say every sentence once, and takes all gains from that one draw,
so that its chance is in every arm's gain and in no standard error. Here that voice says the same sentences ``--draws``
times; the first draw is the study's. Only scorers that cost little are asked: the recogniser and DistillMOS are not.

A gain of the study plus ``shift`` (the first draw less the mean of all) is the gain from that mean; what is left of its
chance is ``se``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.data.atomic import write_json
from rlhf_plugin_tts.speech_data.catalogue import sentences
from rlhf_plugin_tts.speech_data.compare import measure
from rlhf_plugin_tts.speech_data.unseen import UNSEEN
from scripts.bench.__main__ import commit, machine

SCORERS = ("acoustic_proxy", "dnsmos")
SHOWN = ("acoustic_proxy", "dnsmos/p808", "dnsmos/ovrl")


def draws(texts: Sequence[str], n: int) -> dict[str, Any]:
    """Scorer -> scores ``[sentences, n]`` of the untrained voice."""
    how = {"names": SCORERS, "settings": (), "seed": 0, "before": None, "description": "", "jobs": 1}
    result = measure("pocket-voice", {**how, "texts": list(texts), "count": len(texts), "n": n, **SAMPLING})
    return {name: np.array(result["scores"][name]["voice"], float).reshape(-1, n) for name in SHOWN}


SAMPLING = {"max_tokens": 480, "temperature": 1.0}
"""As the study samples."""


def spread(scores_SN: Any) -> dict[str, float]:
    """Of the means over sentences: the first draw's, all draws', one draw's standard deviation, and what that does.

    Example:
        >>> spread(np.array([[1.0, 2.0], [1.0, 2.0]]))["shift"]
        -0.5
    """
    means_N = np.nanmean(scores_SN, axis=0)
    sd = float(np.std(means_N, ddof=1))
    mean, first = float(means_N.mean()), float(means_N[0])
    return {"first": first, "mean": mean, "sd": sd, "shift": first - mean, "se": sd / len(means_N) ** 0.5}


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    kinds = [kind for _, kind, _ in sentences()]
    catalogue = draws([text for _, _, text in sentences()], args.draws)
    unseen = draws(UNSEEN, args.draws)
    result: dict[str, Any] = {
        "unseen": {name: spread(rows) for name, rows in unseen.items()},
        "categories": {
            kind: {name: spread(rows[[k == kind for k in kinds]]) for name, rows in catalogue.items()}
            for kind in dict.fromkeys(kinds)
        },
    }
    for place, row in {"unseen": result["unseen"], **result["categories"]}.items():
        for name, one in row.items():
            print(f"{place:15} {name:15}", "  ".join(f"{k} {v:+.3f}" for k, v in one.items()))
    if args.record:
        said = {"command": "python -m scripts.real.speech_before", "date": time.strftime("%Y-%m-%d")}
        write_json(args.record, {**said, "commit": commit(), "machine": machine(), "draws": args.draws, **result})


if __name__ == "__main__":
    main()
