"""The promised surface (semver; two minors of deprecation). Importing it does not import torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.batches import JudgedBatch as JudgedBatch
    from rlhf_core.batches import LossOutput as LossOutput
    from rlhf_core.batches import PairBatch as PairBatch
    from rlhf_core.batches import TokenBatch as TokenBatch
    from rlhf_core.batches import UnpairedBatch as UnpairedBatch
    from rlhf_core.config.base import ComponentConfig as ComponentConfig
    from rlhf_core.config.base import Config as Config
    from rlhf_core.config.data import DatasetSettings as DatasetSettings
    from rlhf_core.config.slots import component as component
    from rlhf_core.context import BuildContext as BuildContext
    from rlhf_core.data.config import JsonlConfig as JsonlConfig
    from rlhf_core.environments.agent_config import EpisodeAgentConfig as EpisodeAgentConfig
    from rlhf_core.environments.config import EnvironmentConfig as EnvironmentConfig
    from rlhf_core.environments.config import ToolConfig as ToolConfig
    from rlhf_core.environments.program import Conversation as Conversation
    from rlhf_core.environments.tool_spec import tool_spec as tool_spec
    from rlhf_core.errors import ConfigError as ConfigError
    from rlhf_core.errors import DatasetError as DatasetError
    from rlhf_core.errors import DeadlineExceeded as DeadlineExceeded
    from rlhf_core.errors import EngineUnavailable as EngineUnavailable
    from rlhf_core.errors import ModelError as ModelError
    from rlhf_core.errors import PluginError as PluginError
    from rlhf_core.errors import RlhfError as RlhfError
    from rlhf_core.errors import StopRun as StopRun
    from rlhf_core.errors import UserError as UserError
    from rlhf_core.hooks import BatchReady as BatchReady
    from rlhf_core.hooks import CheckpointSaved as CheckpointSaved
    from rlhf_core.hooks import EvalEnd as EvalEnd
    from rlhf_core.hooks import Launch as Launch
    from rlhf_core.hooks import PlanResolved as PlanResolved
    from rlhf_core.hooks import RewardsReady as RewardsReady
    from rlhf_core.hooks import RolloutsReady as RolloutsReady
    from rlhf_core.hooks import RunClosed as RunClosed
    from rlhf_core.hooks import RunEnd as RunEnd
    from rlhf_core.hooks import RunStart as RunStart
    from rlhf_core.hooks import StepEnd as StepEnd
    from rlhf_core.hooks import hookimpl as hookimpl
    from rlhf_core.messages import message_text as message_text
    from rlhf_core.models.config import ModelConfig as ModelConfig
    from rlhf_core.models.places import ModelPath as ModelPath
    from rlhf_core.models.places import model_place as model_place
    from rlhf_core.models.places import planned_format as planned_format
    from rlhf_core.runs.manifest import verify_files as verify_files
    from rlhf_core.toolcalls.formats import Taken as Taken
    from rlhf_core.toolcalls.formats import WrittenCall as WrittenCall
    from rlhf_core.trainers.common.config import OptimizerSettings as OptimizerSettings
    from rlhf_core.trainers.common.config import SamplingSettings as SamplingSettings
    from rlhf_core.trainers.offline.config import OfflineTrainerConfig as OfflineTrainerConfig
    from rlhf_core.trainers.offline.config import PolicyTrainerConfig as PolicyTrainerConfig
    from rlhf_core.trainers.online.config import KLSettings as KLSettings
    from rlhf_core.trainers.online.config import OnlineTrainerConfig as OnlineTrainerConfig
    from rlhf_core.trainers.online.config import ReferenceSettings as ReferenceSettings
    from rlhf_core.trainers.online.config import RolloutTrainerConfig as RolloutTrainerConfig
    from rlhf_core.turns import Segment as Segment
    from rlhf_core.turns import ToolError as ToolError
    from rlhf_core.turns import ToolResult as ToolResult
    from rlhf_core.turns import Turn as Turn
    from rlhf_core.turns import TurnStatus as TurnStatus
    from rlhf_core.turns import VersionSpan as VersionSpan
    from rlhf_core.types import Advantages as Advantages
    from rlhf_core.types import Demonstration as Demonstration
    from rlhf_core.types import FinishReason as FinishReason
    from rlhf_core.types import JudgedResponse as JudgedResponse
    from rlhf_core.types import JudgeReply as JudgeReply
    from rlhf_core.types import JudgeRequest as JudgeRequest
    from rlhf_core.types import Media as Media
    from rlhf_core.types import Message as Message
    from rlhf_core.types import PreferencePair as PreferencePair
    from rlhf_core.types import Prompt as Prompt
    from rlhf_core.types import PromptGroup as PromptGroup
    from rlhf_core.types import Rollout as Rollout
    from rlhf_core.types import RolloutRequest as RolloutRequest
    from rlhf_core.types import Sample as Sample
    from rlhf_core.types import SamplingParams as SamplingParams
    from rlhf_core.types import Score as Score
    from rlhf_core.types import ScoreStatus as ScoreStatus
    from rlhf_core.types import TokenValues as TokenValues
    from rlhf_core.types import Tool as Tool
    from rlhf_core.types import ToolCall as ToolCall
    from rlhf_core.types import UnpairedPreference as UnpairedPreference
    from rlhf_core.verifiers.config import VerifierConfig as VerifierConfig
    from rlhf_core.verifiers.config import VerifierRewardConfig as VerifierRewardConfig

_HOMES = {
    "rlhf_core.batches": ("JudgedBatch", "LossOutput", "PairBatch", "TokenBatch", "UnpairedBatch"),
    "rlhf_core.config.base": ("ComponentConfig", "Config"),
    "rlhf_core.config.data": ("DatasetSettings",),
    "rlhf_core.config.slots": ("component",),
    "rlhf_core.context": ("BuildContext",),
    "rlhf_core.verifiers.config": ("VerifierConfig", "VerifierRewardConfig"),
    "rlhf_core.data.config": ("JsonlConfig",),
    "rlhf_core.environments.agent_config": ("EpisodeAgentConfig",),
    "rlhf_core.environments.program": ("Conversation",),
    "rlhf_core.environments.config": ("EnvironmentConfig", "ToolConfig"),
    "rlhf_core.environments.tool_spec": ("tool_spec",),
    "rlhf_core.errors": (
        "ConfigError",
        "DatasetError",
        "DeadlineExceeded",
        "EngineUnavailable",
        "ModelError",
        "PluginError",
        "RlhfError",
        "StopRun",
        "UserError",
    ),
    "rlhf_core.hooks": (
        "BatchReady",
        "CheckpointSaved",
        "EvalEnd",
        "Launch",
        "PlanResolved",
        "RewardsReady",
        "RolloutsReady",
        "RunClosed",
        "RunEnd",
        "RunStart",
        "StepEnd",
        "hookimpl",
    ),
    "rlhf_core.messages": ("message_text",),
    "rlhf_core.models.config": ("ModelConfig",),
    "rlhf_core.models.places": ("ModelPath", "model_place", "planned_format"),
    "rlhf_core.runs.manifest": ("verify_files",),
    "rlhf_core.toolcalls.formats": ("Taken", "WrittenCall"),
    "rlhf_core.trainers.common.config": ("OptimizerSettings", "SamplingSettings"),
    "rlhf_core.trainers.offline.config": ("OfflineTrainerConfig", "PolicyTrainerConfig"),
    "rlhf_core.trainers.online.config": (
        "KLSettings",
        "OnlineTrainerConfig",
        "ReferenceSettings",
        "RolloutTrainerConfig",
    ),
    "rlhf_core.turns": ("Segment", "ToolError", "ToolResult", "Turn", "TurnStatus", "VersionSpan"),
    "rlhf_core.types": (
        "Advantages",
        "Demonstration",
        "FinishReason",
        "JudgeReply",
        "JudgeRequest",
        "JudgedResponse",
        "UnpairedPreference",
        "Media",
        "Message",
        "PreferencePair",
        "Prompt",
        "PromptGroup",
        "Rollout",
        "RolloutRequest",
        "Sample",
        "SamplingParams",
        "Score",
        "ScoreStatus",
        "TokenValues",
        "Tool",
        "ToolCall",
    ),
}
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _WHERE.get(name)
    if home is None:
        raise AttributeError(f"rlhf_core.api has no '{name}'")
    return getattr(import_module(home), name)
