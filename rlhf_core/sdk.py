"""The second promised surface, beside :mod:`rlhf_core.api`: what trainers, trained rewards, engines and commands need.

Names are grouped by topic in ``TOPICS``. Versioned as the api is (two minors of deprecation, ADR 0011). Importing this
module imports neither torch nor transformers: a name is imported from its home when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.cli.common import Choice as Choice
    from rlhf_core.cli.common import emit_json as emit_json
    from rlhf_core.cli.common import quiet_libraries as quiet_libraries
    from rlhf_core.cli.common import set_up_logging as set_up_logging
    from rlhf_core.cli.common import table as table
    from rlhf_core.cli.components import component_of as component_of
    from rlhf_core.cli.components import context_of as context_of
    from rlhf_core.cli.components import load_sampler as load_sampler
    from rlhf_core.cli.components import open_component as open_component
    from rlhf_core.cli.components import open_registry as open_registry
    from rlhf_core.cli.generate import sample_completions as sample_completions
    from rlhf_core.cli.groups import OpenGroup as OpenGroup
    from rlhf_core.cli.options import allow_unsafe as allow_unsafe
    from rlhf_core.cli.options import unsafe_option as unsafe_option
    from rlhf_core.cli.scoring import check_output as check_output
    from rlhf_core.cli.scoring import chosen_reward as chosen_reward
    from rlhf_core.cli.scoring import read_samples as read_samples
    from rlhf_core.config.errors import explain_invalid as explain_invalid
    from rlhf_core.config.load import merge_settings as merge_settings
    from rlhf_core.config.load import parse_settings as parse_settings
    from rlhf_core.config.load import read_yaml as read_yaml
    from rlhf_core.config.run import RunConfig as RunConfig
    from rlhf_core.contracts import score_samples as score_samples
    from rlhf_core.data.datasets import Datasets as Datasets
    from rlhf_core.data.files import check_file as check_file
    from rlhf_core.data.files import read_rows as read_rows
    from rlhf_core.data.mixture import interleave as interleave
    from rlhf_core.data.schema import RawRow as RawRow
    from rlhf_core.data.schema import RowReader as RowReader
    from rlhf_core.delimiters import delimited as delimited
    from rlhf_core.errors import RunDirError as RunDirError
    from rlhf_core.kernels.agreement import rounding_tolerance as rounding_tolerance
    from rlhf_core.kernels.last_token import can_pack as can_pack
    from rlhf_core.kernels.last_token import last_token_hidden as last_token_hidden
    from rlhf_core.kernels.matmul import use_matmul_backend as use_matmul_backend
    from rlhf_core.kernels.padded import pad_rows as pad_rows
    from rlhf_core.kernels.padded import pad_values as pad_values
    from rlhf_core.kernels.padded import predicting as predicting
    from rlhf_core.kernels.split import has_linear_head as has_linear_head
    from rlhf_core.kernels.trunk_and_head import base_model as base_model
    from rlhf_core.kernels.trunk_and_head import take_apart as take_apart
    from rlhf_core.memory.engine import EngineFacts as EngineFacts
    from rlhf_core.memory.engine import EngineMemory as EngineMemory
    from rlhf_core.models.load import LoadedModel as LoadedModel
    from rlhf_core.models.load import clear_quantization_config as clear_quantization_config
    from rlhf_core.models.load import context_length as context_length
    from rlhf_core.models.load import load_policy as load_policy
    from rlhf_core.models.load import load_tokenizer as load_tokenizer
    from rlhf_core.models.prompt_format import Formatter as Formatter
    from rlhf_core.models.prompt_format import encode_raw_prompt as encode_raw_prompt
    from rlhf_core.models.reference import Reference as Reference
    from rlhf_core.models.save import load_weights as load_weights
    from rlhf_core.models.save import save_model as save_model
    from rlhf_core.models.save import write_transformer as write_transformer
    from rlhf_core.models.slices import ValuesForAdapters as ValuesForAdapters
    from rlhf_core.models.slices import has_no_weights as has_no_weights
    from rlhf_core.models.slices import load_named as load_named
    from rlhf_core.models.slices import read_elements as read_elements
    from rlhf_core.models.sources import model_paths as model_paths
    from rlhf_core.models.sources import resolve_model as resolve_model
    from rlhf_core.models.sources import weights_digest as weights_digest
    from rlhf_core.models.tensor_files import save_named as save_named
    from rlhf_core.policy.forward import completion_logprobs as completion_logprobs
    from rlhf_core.policy.forward_options import ForwardOptions as ForwardOptions
    from rlhf_core.protocols import Advantage as Advantage
    from rlhf_core.protocols import Agent as Agent
    from rlhf_core.protocols import Benchmark as Benchmark
    from rlhf_core.protocols import Closeable as Closeable
    from rlhf_core.protocols import CriticAdvantage as CriticAdvantage
    from rlhf_core.protocols import DatasetSource as DatasetSource
    from rlhf_core.protocols import GoldScorer as GoldScorer
    from rlhf_core.protocols import Judge as Judge
    from rlhf_core.protocols import Loss as Loss
    from rlhf_core.protocols import ModuleRelease as ModuleRelease
    from rlhf_core.protocols import Monitor as Monitor
    from rlhf_core.protocols import RewardModel as RewardModel
    from rlhf_core.protocols import RolloutEngine as RolloutEngine
    from rlhf_core.protocols import ShardedForward as ShardedForward
    from rlhf_core.protocols import ShardedLoading as ShardedLoading
    from rlhf_core.protocols import Stateful as Stateful
    from rlhf_core.protocols import Strategy as Strategy
    from rlhf_core.protocols import Study as Study
    from rlhf_core.protocols import Tracker as Tracker
    from rlhf_core.protocols import Trainer as Trainer
    from rlhf_core.protocols import Verifier as Verifier
    from rlhf_core.registry import Registry as Registry
    from rlhf_core.registry import check_component as check_component
    from rlhf_core.rollout.native import NativeEngine as NativeEngine
    from rlhf_core.rollout.seeds import request_seed as request_seed
    from rlhf_core.rollout_batch import RolloutBatch as RolloutBatch
    from rlhf_core.runs.atomic import whole_folder as whole_folder
    from rlhf_core.runs.atomic import write_json as write_json
    from rlhf_core.runs.atomic import write_text as write_text
    from rlhf_core.runs.build_component import build_component as build_component
    from rlhf_core.runs.cache import cache_folder as cache_folder
    from rlhf_core.runs.checkpoint import preserved_rng as preserved_rng
    from rlhf_core.runs.checkpoint import seed_everything as seed_everything
    from rlhf_core.runs.checkpoint_manager import Checkpoint as Checkpoint
    from rlhf_core.runs.jsonl import JsonlFile as JsonlFile
    from rlhf_core.runs.jsonl import json_values as json_values
    from rlhf_core.runs.jsonl import read_jsonl as read_jsonl
    from rlhf_core.runs.read import StoredRun as StoredRun
    from rlhf_core.runs.read import find_run as find_run
    from rlhf_core.runs.run_dir import check_writable as check_writable
    from rlhf_core.runs.run_dir import default_run_dir as default_run_dir
    from rlhf_core.runs.session import RunSession as RunSession
    from rlhf_core.runs.timer import Timer as Timer
    from rlhf_core.runs.trace import prompt_rows as prompt_rows
    from rlhf_core.strategy.local import LocalStrategy as LocalStrategy
    from rlhf_core.strategy.no_grad_forward import NoGradForward as NoGradForward
    from rlhf_core.strategy.on_ranks import OnRanks as OnRanks
    from rlhf_core.strategy.optimizer import NormPart as NormPart
    from rlhf_core.strategy.optimizer import OptimizerPlan as OptimizerPlan
    from rlhf_core.strategy.optimizer import read_moments as read_moments
    from rlhf_core.strategy.units import decoder_layers as decoder_layers
    from rlhf_core.strategy.whole_weights import ComputedWeights as ComputedWeights
    from rlhf_core.strategy.whole_weights import on_demand as on_demand
    from rlhf_core.strategy.whole_weights import use_whole_weights as use_whole_weights
    from rlhf_core.study.config import StudyConfig as StudyConfig
    from rlhf_core.trainers.common.config import LoopSettings as LoopSettings
    from rlhf_core.trainers.common.generation import rollout_metrics as rollout_metrics
    from rlhf_core.trainers.common.learner import Learner as Learner
    from rlhf_core.trainers.common.micro_batches import micro_batches_of_size as micro_batches_of_size
    from rlhf_core.trainers.common.optimizer import prepare_to_learn as prepare_to_learn
    from rlhf_core.trainers.common.policy_evaluator import Evaluation as Evaluation
    from rlhf_core.trainers.common.policy_loading import load_trained_policy as load_trained_policy
    from rlhf_core.trainers.common.policy_module import PolicyModule as PolicyModule
    from rlhf_core.trainers.common.rewards import score_metrics as score_metrics
    from rlhf_core.trainers.common.run_loop import LoopSchedule as LoopSchedule
    from rlhf_core.trainers.common.run_loop import run_loop as run_loop
    from rlhf_core.trainers.common.run_steps import run_steps as run_steps
    from rlhf_core.trainers.common.sharded_trial import try_transformer as try_transformer
    from rlhf_core.trainers.common.training_sample import TrainingSample as TrainingSample
    from rlhf_core.trainers.offline.trainer import OfflineTask as OfflineTask
    from rlhf_core.trainers.offline.trainer import OfflineTrainer as OfflineTrainer
    from rlhf_core.trainers.online.advantages import measure_kl as measure_kl
    from rlhf_core.trainers.online.build import RolloutParts as RolloutParts
    from rlhf_core.trainers.online.build import TrainedModule as TrainedModule
    from rlhf_core.trainers.online.build import build_loss as build_loss
    from rlhf_core.trainers.online.build import build_rollout_parts as build_rollout_parts
    from rlhf_core.trainers.online.inputs import load_online_inputs as load_online_inputs
    from rlhf_core.trainers.online.preflight import check_prompt_shares as check_prompt_shares
    from rlhf_core.trainers.online.preflight import check_reference as check_reference
    from rlhf_core.trainers.online.summary import summarize_online_run as summarize_online_run
    from rlhf_core.verifiers.numeric import find_numbers as find_numbers
    from rlhf_core.verifiers.numeric import stated_number as stated_number


TOPICS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Models and tokenizers": {
        "rlhf_core.models.load": (
            "LoadedModel",
            "load_policy",
            "load_tokenizer",
            "context_length",
            "clear_quantization_config",
        ),
        "rlhf_core.models.prompt_format": ("Formatter", "encode_raw_prompt"),
        "rlhf_core.models.reference": ("Reference",),
        "rlhf_core.models.slices": ("ValuesForAdapters", "has_no_weights", "load_named", "read_elements"),
        "rlhf_core.models.save": ("load_weights", "save_model", "write_transformer"),
        "rlhf_core.models.tensor_files": ("save_named",),
        "rlhf_core.models.sources": (
            "resolve_model",
            "model_paths",
            "weights_digest",
        ),
    },
    "The shared forward": {
        "rlhf_core.policy.forward": ("completion_logprobs",),
        "rlhf_core.kernels.padded": ("pad_rows", "pad_values", "predicting"),
        "rlhf_core.policy.forward_options": ("ForwardOptions",),
        "rlhf_core.kernels.agreement": ("rounding_tolerance",),
        "rlhf_core.kernels.split": ("has_linear_head",),
        "rlhf_core.kernels.trunk_and_head": ("base_model", "take_apart"),
        "rlhf_core.kernels.last_token": ("can_pack", "last_token_hidden"),
    },
    "Sampling": {
        "rlhf_core.rollout.native": ("NativeEngine",),
        "rlhf_core.rollout.seeds": ("request_seed",),
        "rlhf_core.memory.engine": ("EngineFacts", "EngineMemory"),
        "rlhf_core.kernels.matmul": ("use_matmul_backend",),
        "rlhf_core.cli.components": ("load_sampler",),
        "rlhf_core.cli.generate": ("sample_completions",),
    },
    "Training": {
        "rlhf_core.trainers.common.config": ("LoopSettings",),
        "rlhf_core.trainers.common.run_steps": ("run_steps",),
        "rlhf_core.runs.build_component": ("build_component",),
        "rlhf_core.trainers.common.learner": ("Learner",),
        "rlhf_core.trainers.common.micro_batches": ("micro_batches_of_size",),
        "rlhf_core.trainers.common.optimizer": ("prepare_to_learn",),
        "rlhf_core.trainers.common.policy_evaluator": ("Evaluation",),
        "rlhf_core.trainers.common.policy_module": ("PolicyModule",),
        "rlhf_core.trainers.common.policy_loading": ("load_trained_policy",),
        "rlhf_core.trainers.common.run_loop": ("LoopSchedule", "run_loop"),
        "rlhf_core.trainers.common.sharded_trial": ("try_transformer",),
        "rlhf_core.trainers.common.training_sample": ("TrainingSample",),
        "rlhf_core.trainers.offline.trainer": ("OfflineTrainer", "OfflineTask"),
        "rlhf_core.trainers.online.advantages": ("measure_kl",),
        "rlhf_core.trainers.online.build": ("RolloutParts", "TrainedModule", "build_loss", "build_rollout_parts"),
        "rlhf_core.trainers.common.generation": ("rollout_metrics",),
        "rlhf_core.trainers.online.inputs": ("load_online_inputs",),
        "rlhf_core.trainers.online.preflight": ("check_prompt_shares", "check_reference"),
        "rlhf_core.trainers.common.rewards": ("score_metrics",),
        "rlhf_core.trainers.online.summary": ("summarize_online_run",),
        "rlhf_core.rollout_batch": ("RolloutBatch",),
        "rlhf_core.strategy.local": ("LocalStrategy",),
        "rlhf_core.strategy.no_grad_forward": ("NoGradForward",),
        "rlhf_core.strategy.on_ranks": ("OnRanks",),
        "rlhf_core.strategy.optimizer": ("NormPart", "OptimizerPlan", "read_moments"),
        "rlhf_core.strategy.units": ("decoder_layers",),
        "rlhf_core.strategy.whole_weights": ("ComputedWeights", "on_demand", "use_whole_weights"),
        "rlhf_core.runs.session": ("RunSession",),
        "rlhf_core.runs.timer": ("Timer",),
        "rlhf_core.runs.trace": ("prompt_rows",),
        "rlhf_core.runs.checkpoint_manager": ("Checkpoint",),
        "rlhf_core.runs.checkpoint": ("preserved_rng", "seed_everything"),
    },
    "Data": {
        "rlhf_core.data.datasets": ("Datasets",),
        "rlhf_core.data.files": ("check_file", "read_rows"),
        "rlhf_core.data.mixture": ("interleave",),
        "rlhf_core.data.schema": ("RowReader", "RawRow"),
        "rlhf_core.cli.scoring": ("read_samples",),
    },
    "Runs, caches and files": {
        "rlhf_core.errors": ("RunDirError",),
        "rlhf_core.runs.atomic": ("whole_folder", "write_json", "write_text"),
        "rlhf_core.runs.cache": ("cache_folder",),
        "rlhf_core.runs.jsonl": ("JsonlFile", "json_values", "read_jsonl"),
        "rlhf_core.runs.read": ("StoredRun", "find_run"),
        "rlhf_core.runs.run_dir": ("check_writable", "default_run_dir"),
    },
    "Scores and answers": {
        "rlhf_core.contracts": ("score_samples",),
        "rlhf_core.delimiters": ("delimited",),
        "rlhf_core.verifiers.numeric": ("find_numbers", "stated_number"),
    },
    "Configuration and registry": {
        "rlhf_core.config.run": ("RunConfig",),
        "rlhf_core.config.errors": ("explain_invalid",),
        "rlhf_core.config.load": ("merge_settings", "parse_settings", "read_yaml"),
        "rlhf_core.registry": ("Registry", "check_component"),
        "rlhf_core.cli.components": ("component_of", "context_of", "open_component"),
    },
    "Commands": {
        "rlhf_core.cli.common": ("Choice", "emit_json", "quiet_libraries", "set_up_logging", "table"),
        "rlhf_core.cli.groups": ("OpenGroup",),
        "rlhf_core.cli.options": ("unsafe_option", "allow_unsafe"),
        "rlhf_core.cli.scoring": ("check_output", "chosen_reward"),
        "rlhf_core.cli.components": ("open_registry",),
    },
    "Studies": {
        "rlhf_core.study.config": ("StudyConfig",),
    },
    "Protocols": {
        "rlhf_core.protocols": (
            "Advantage",
            "Agent",
            "Benchmark",
            "Closeable",
            "CriticAdvantage",
            "DatasetSource",
            "GoldScorer",
            "Judge",
            "Loss",
            "ModuleRelease",
            "Monitor",
            "RewardModel",
            "RolloutEngine",
            "ShardedForward",
            "ShardedLoading",
            "Stateful",
            "Strategy",
            "Study",
            "Tracker",
            "Trainer",
            "Verifier",
        ),
    },
}
"""Topic -> home -> names."""

_HOME = {name: home for homes in TOPICS.values() for home, names in homes.items() for name in names}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"rlhf_core.sdk has no '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__


def names_by_topic() -> Mapping[str, tuple[str, ...]]:
    """Topic -> its names, sorted; the reference is written from it."""
    return {topic: tuple(sorted(name for names in homes.values() for name in names)) for topic, homes in TOPICS.items()}
