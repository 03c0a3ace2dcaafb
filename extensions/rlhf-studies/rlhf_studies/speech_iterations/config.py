from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_plugin_tts.speech_training import recipe
from rlhf_studies.common.ablation.worlds import WorldAblation
from rlhf_study.ablation.config import Claim, Settings

VOICE: Settings = {
    "model": {"path": "pocket-voice"},
    "dataset": {"name": "speech", "descriptions": True},
    "reward": recipe.composite(),
    "trainer": {**recipe.trainer("iterative_dpo", 1, "fresh"), "eval_every": 1, "reward_workers": 1},
}
FOURTH, SHARE = "measured/gain_4", "measured/fourth_over_mean_of_three"


class SpeechIterationsConfig(WorldAblation):
    """Five iterations of `rlhf tts train` on pocket-voice with three buffers. The reward (DNSMOS and the right phones),
    evaluated on validation sentences after each, stands for the document's quality proxy."""

    name: str = "speech_iterations"
    component: ClassVar[str] = "rlhf_studies.speech_iterations.run:SpeechIterations"
    smoke: ClassVar[Mapping[str, Any]] = {
        "steps": 1,
        "arms": {"fresh": {"trainer": dict(recipe.BUFFERS["fresh"])}},
        "claims": (),
        "train": {"trainer": {"rollout_batch_size": 8, "pair_batch_size": 2, "updates": 1, "eval_samples": 2}},
    }
    worlds: ClassVar[Mapping[str, Settings]] = {"pocket": VOICE}
    arms: Mapping[str, Settings] = {name: {"trainer": dict(of)} for name, of in recipe.BUFFERS.items()}
    claims: tuple[Claim, ...] = (
        Claim(
            "002:537",
            "A fourth iteration gains less than the first three did on average",
            "fresh",
            sign=-1,
            weights={"fresh": 1.0},
            metric=SHARE,
        ),
        Claim("002:537", "Does it gain at all (.03)?", "fresh", weights={"fresh": 1.0}, metric=FOURTH),
        Claim("002:390", "The full buffer degrades against fresh pairs", "full", "fresh", -1),
    )
    also: tuple[str, ...] = (*(f"measured/gain_{n}" for n in range(1, 6)), SHARE)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 5
