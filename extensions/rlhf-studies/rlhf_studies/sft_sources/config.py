from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common.ablation.assistants import BEFORE, FILES, JUDGE, SMOKE_BEFORE, RowsAblation
from rlhf_studies.common.ablation.policies import GOLD, HOLLOW, KL, REWARD, WINS, WORDS
from rlhf_study.ablation.config import Claim, Settings


class SftSourcesConfig(RowsAblation):
    """SFT on equally many demonstrations: written by people; drafted by the model, criticised and revised by
    principles (no flattery, no hedge, no padding) that do not know what is true; half of each. A reward model of human
    pairs scores all."""

    name: str = "sft_sources"
    component: ClassVar[str] = "rlhf_studies.sft_sources.run:SftSources"
    smoke: ClassVar[Mapping[str, Any]] = {**RowsAblation.smoke, "rows": 16, "train_before": SMOKE_BEFORE}
    worlds: ClassVar[Mapping[str, Settings]] = {"pocket": FILES}
    worlds_before: ClassVar[Mapping[str, Settings]] = BEFORE
    before: ClassVar[Mapping[str, Settings]] = {"judge": JUDGE}
    shared: ClassVar[Settings] = {"trainer": {"name": "sft", "epochs": 1000}}
    arms: Mapping[str, Settings] = {
        source: {"dataset": {"path": f"@{source}"}} for source in ("human", "synthetic", "mixed")
    }
    claims: tuple[Claim, ...] = (
        Claim("002:286", "Synthetic demonstrations earn less reward (.198, .212)", "synthetic", "human", -1, REWARD),
        Claim("002:287", "Half of each earns more than human ones (.221, .212)", "mixed", "human", 1, REWARD),
        Claim("002:287", "Is the mixture as good by the hidden gold score?", "mixed", "human"),
    )
    metric: str = GOLD
    also: tuple[str, ...] = (REWARD, WINS, KL, HOLLOW, WORDS, "eval/loss")
    rows: int = Field(default=640, ge=2)
