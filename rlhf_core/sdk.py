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
    from rlhf_core.cli.common import shorten as shorten
    from rlhf_core.cli.common import table as table
    from rlhf_core.cli.components import component_of as component_of
    from rlhf_core.cli.components import context_of as context_of
    from rlhf_core.cli.components import load_sampler as load_sampler
    from rlhf_core.cli.components import open_component as open_component
    from rlhf_core.cli.components import open_registry as open_registry
    from rlhf_core.cli.generate import sample as _sample_completions
    from rlhf_core.cli.groups import OpenGroup as OpenGroup
    from rlhf_core.cli.options import allow_unsafe as allow_unsafe
    from rlhf_core.cli.options import unsafe_option as unsafe_option
    from rlhf_core.cli.scoring import check_output as check_output
    from rlhf_core.cli.scoring import chosen_reward as chosen_reward
    from rlhf_core.cli.scoring import read_samples as read_samples
    from rlhf_core.config.errors import explain as _explain_invalid
    from rlhf_core.config.load import merge as _merge_settings
    from rlhf_core.config.load import parse_sets as _parse_settings
    from rlhf_core.config.load import read_yaml as read_yaml
    from rlhf_core.config.run import RunConfig as RunConfig
    from rlhf_core.contracts import contract_error as contract_error
    from rlhf_core.contracts import score_samples as score_samples
    from rlhf_core.data.datasets import Datasets as Datasets
    from rlhf_core.data.files import check_file as check_file
    from rlhf_core.data.files import read_json as _read_rows
    from rlhf_core.data.mixture import interleave as interleave
    from rlhf_core.data.schema import Reader as _RowReader
    from rlhf_core.data.schema import Record as _RawRow
    from rlhf_core.errors import RunDirError as RunDirError
    from rlhf_core.hooks import BatchReady as BatchReady
    from rlhf_core.hooks import CheckpointSaved as CheckpointSaved
    from rlhf_core.hooks import EvalEnd as EvalEnd
    from rlhf_core.hooks import Launch as Launch
    from rlhf_core.hooks import PlanResolved as PlanResolved
    from rlhf_core.hooks import RewardsReady as RewardsReady
    from rlhf_core.hooks import RolloutsReady as RolloutsReady
    from rlhf_core.hooks import RunEnd as RunEnd
    from rlhf_core.hooks import RunStart as RunStart
    from rlhf_core.hooks import StepEnd as StepEnd
    from rlhf_core.kernels.agreement import tolerance as _forward_tolerance
    from rlhf_core.kernels.last_token import can_pack as can_pack
    from rlhf_core.kernels.last_token import last_hidden as _last_token_hidden
    from rlhf_core.kernels.matmul import use_products as use_products
    from rlhf_core.kernels.padded import pad as _pad_rows
    from rlhf_core.kernels.split import splits as splits
    from rlhf_core.kernels.trunk_and_head import base_model as base_model
    from rlhf_core.kernels.trunk_and_head import take_apart as take_apart
    from rlhf_core.models.load import LoadedModel as LoadedModel
    from rlhf_core.models.load import clear_quantizer as clear_quantizer
    from rlhf_core.models.load import context_length as context_length
    from rlhf_core.models.load import load_policy as load_policy
    from rlhf_core.models.load import load_tokenizer as load_tokenizer
    from rlhf_core.models.prompt_format import Formatter as Formatter
    from rlhf_core.models.prompt_format import plain_ids as plain_ids
    from rlhf_core.models.reference import Reference as Reference
    from rlhf_core.models.save import load_weights as load_weights
    from rlhf_core.models.save import write_folder as _save_model
    from rlhf_core.models.sources import paths_in as _model_paths
    from rlhf_core.models.sources import resolve as _resolve_model
    from rlhf_core.models.sources import weights_print as _weights_digest
    from rlhf_core.policy.forward import CompletionLogprobs as CompletionLogprobs
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
    from rlhf_core.protocols import Monitor as Monitor
    from rlhf_core.protocols import RewardModel as RewardModel
    from rlhf_core.protocols import RolloutEngine as RolloutEngine
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
    from rlhf_core.runs.atomic import disk_error as disk_error
    from rlhf_core.runs.atomic import whole_folder as whole_folder
    from rlhf_core.runs.atomic import write_json as write_json
    from rlhf_core.runs.atomic import write_text as write_text
    from rlhf_core.runs.build_component import build_component as build_component
    from rlhf_core.runs.cache import cache_folder as cache_folder
    from rlhf_core.runs.checkpoint import preserved_rng as preserved_rng
    from rlhf_core.runs.checkpoint import seed_everything as seed_everything
    from rlhf_core.runs.checkpoint_manager import Checkpoint as Checkpoint
    from rlhf_core.runs.events import LiveEvents as LiveEvents
    from rlhf_core.runs.jsonl import JsonlFile as JsonlFile
    from rlhf_core.runs.jsonl import plain as _json_values
    from rlhf_core.runs.jsonl import read_jsonl as read_jsonl
    from rlhf_core.runs.read import StoredRun as StoredRun
    from rlhf_core.runs.read import find_run as find_run
    from rlhf_core.runs.read import read_run as read_run
    from rlhf_core.runs.run_dir import check_writable as check_writable
    from rlhf_core.runs.run_dir import default_run_dir as default_run_dir
    from rlhf_core.runs.session import RunSession as RunSession
    from rlhf_core.runs.timer import Timer as Timer
    from rlhf_core.runs.trace import prompt_rows as prompt_rows
    from rlhf_core.strategy.local import LocalStrategy as LocalStrategy
    from rlhf_core.study.config import StudyConfig as StudyConfig
    from rlhf_core.trainers.common.config import LoopSettings as LoopSettings
    from rlhf_core.trainers.common.learner import Learner as Learner
    from rlhf_core.trainers.common.micro_batches import in_order as in_order
    from rlhf_core.trainers.common.policy_evaluator import Evaluation as Evaluation
    from rlhf_core.trainers.common.policy_module import PolicyModule as PolicyModule
    from rlhf_core.trainers.common.run_loop import LoopSchedule as LoopSchedule
    from rlhf_core.trainers.common.run_loop import run_loop as run_loop
    from rlhf_core.trainers.common.run_steps import run_steps as run_steps
    from rlhf_core.trainers.common.training_sample import TrainingSample as TrainingSample
    from rlhf_core.trainers.offline.trainer import OfflineTrainer as OfflineTrainer
    from rlhf_core.trainers.offline.trainer import Task as _OfflineTask
    from rlhf_core.trainers.online.advantages import measured_kl as _measure_kl
    from rlhf_core.trainers.online.build import RolloutParts as RolloutParts
    from rlhf_core.trainers.online.build import build_rollout_parts as build_rollout_parts
    from rlhf_core.trainers.online.generation import rollout_metrics as rollout_metrics
    from rlhf_core.trainers.online.inputs import load_inputs as load_inputs
    from rlhf_core.trainers.online.preflight import check_prompt_shares as check_prompt_shares
    from rlhf_core.trainers.online.preflight import check_reference as check_reference
    from rlhf_core.trainers.online.rewards import score_metrics as score_metrics
    from rlhf_core.trainers.online.summary import online_summary as online_summary
    from rlhf_core.verifiers.numeric import find_numbers as find_numbers
    from rlhf_core.verifiers.numeric import stated_number as stated_number
    from rlhf_core.verifiers.pool import VerifierPool as VerifierPool
    from rlhf_core.verifiers.verifier_reward import worker_spec as worker_spec
    from rlhf_core.verifiers.worker_handle import descendants as descendants

    sample_completions = _sample_completions
    explain_invalid = _explain_invalid
    merge_settings = _merge_settings
    parse_settings = _parse_settings
    read_rows = _read_rows
    RowReader = _RowReader
    RawRow = _RawRow
    forward_tolerance = _forward_tolerance
    last_token_hidden = _last_token_hidden
    pad_rows = _pad_rows
    save_model = _save_model
    model_paths = _model_paths
    resolve_model = _resolve_model
    weights_digest = _weights_digest
    json_values = _json_values
    OfflineTask = _OfflineTask
    measure_kl = _measure_kl

TOPICS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Models and tokenizers": {
        "rlhf_core.models.load": ("LoadedModel", "load_policy", "load_tokenizer", "context_length", "clear_quantizer"),
        "rlhf_core.models.prompt_format": ("Formatter", "plain_ids"),
        "rlhf_core.models.reference": ("Reference",),
        "rlhf_core.models.save": ("load_weights", "write_folder as save_model"),
        "rlhf_core.models.sources": (
            "resolve as resolve_model",
            "paths_in as model_paths",
            "weights_print as weights_digest",
        ),
    },
    "The shared forward": {
        "rlhf_core.policy.forward": ("CompletionLogprobs", "completion_logprobs"),
        "rlhf_core.kernels.padded": ("pad as pad_rows",),
        "rlhf_core.policy.forward_options": ("ForwardOptions",),
        "rlhf_core.kernels.agreement": ("tolerance as forward_tolerance",),
        "rlhf_core.kernels.split": ("splits",),
        "rlhf_core.kernels.trunk_and_head": ("base_model", "take_apart"),
        "rlhf_core.kernels.last_token": ("can_pack", "last_hidden as last_token_hidden"),
    },
    "Sampling": {
        "rlhf_core.rollout.native": ("NativeEngine",),
        "rlhf_core.rollout.seeds": ("request_seed",),
        "rlhf_core.kernels.matmul": ("use_products",),
        "rlhf_core.cli.components": ("load_sampler",),
        "rlhf_core.cli.generate": ("sample as sample_completions",),
    },
    "Training": {
        "rlhf_core.trainers.common.config": ("LoopSettings",),
        "rlhf_core.trainers.common.run_steps": ("run_steps",),
        "rlhf_core.runs.build_component": ("build_component",),
        "rlhf_core.trainers.common.learner": ("Learner",),
        "rlhf_core.trainers.common.micro_batches": ("in_order",),
        "rlhf_core.trainers.common.policy_evaluator": ("Evaluation",),
        "rlhf_core.trainers.common.policy_module": ("PolicyModule",),
        "rlhf_core.trainers.common.run_loop": ("LoopSchedule", "run_loop"),
        "rlhf_core.trainers.common.training_sample": ("TrainingSample",),
        "rlhf_core.trainers.offline.trainer": ("OfflineTrainer", "Task as OfflineTask"),
        "rlhf_core.trainers.online.advantages": ("measured_kl as measure_kl",),
        "rlhf_core.trainers.online.build": ("RolloutParts", "build_rollout_parts"),
        "rlhf_core.trainers.online.generation": ("rollout_metrics",),
        "rlhf_core.trainers.online.inputs": ("load_inputs",),
        "rlhf_core.trainers.online.preflight": ("check_prompt_shares", "check_reference"),
        "rlhf_core.trainers.online.rewards": ("score_metrics",),
        "rlhf_core.trainers.online.summary": ("online_summary",),
        "rlhf_core.rollout_batch": ("RolloutBatch",),
        "rlhf_core.strategy.local": ("LocalStrategy",),
        "rlhf_core.runs.session": ("RunSession",),
        "rlhf_core.runs.timer": ("Timer",),
        "rlhf_core.runs.trace": ("prompt_rows",),
        "rlhf_core.runs.events": ("LiveEvents",),
        "rlhf_core.runs.checkpoint_manager": ("Checkpoint",),
        "rlhf_core.runs.checkpoint": ("preserved_rng", "seed_everything"),
    },
    "Data": {
        "rlhf_core.data.datasets": ("Datasets",),
        "rlhf_core.data.files": ("check_file", "read_json as read_rows"),
        "rlhf_core.data.mixture": ("interleave",),
        "rlhf_core.data.schema": ("Reader as RowReader", "Record as RawRow"),
        "rlhf_core.cli.scoring": ("read_samples",),
    },
    "Runs, caches and files": {
        "rlhf_core.errors": ("RunDirError",),
        "rlhf_core.runs.atomic": ("disk_error", "whole_folder", "write_json", "write_text"),
        "rlhf_core.runs.cache": ("cache_folder",),
        "rlhf_core.runs.jsonl": ("JsonlFile", "plain as json_values", "read_jsonl"),
        "rlhf_core.runs.read": ("StoredRun", "find_run", "read_run"),
        "rlhf_core.runs.run_dir": ("check_writable", "default_run_dir"),
    },
    "Scores and answers": {
        "rlhf_core.contracts": ("contract_error", "score_samples"),
        "rlhf_core.verifiers.pool": ("VerifierPool",),
        "rlhf_core.verifiers.verifier_reward": ("worker_spec",),
        "rlhf_core.verifiers.worker_handle": ("descendants",),
        "rlhf_core.verifiers.numeric": ("find_numbers", "stated_number"),
    },
    "Configuration and registry": {
        "rlhf_core.config.run": ("RunConfig",),
        "rlhf_core.config.errors": ("explain as explain_invalid",),
        "rlhf_core.config.load": ("merge as merge_settings", "parse_sets as parse_settings", "read_yaml"),
        "rlhf_core.registry": ("Registry", "check_component"),
        "rlhf_core.cli.components": ("component_of", "context_of", "open_component"),
    },
    "Commands": {
        "rlhf_core.cli.common": ("Choice", "emit_json", "quiet_libraries", "set_up_logging", "shorten", "table"),
        "rlhf_core.cli.groups": ("OpenGroup",),
        "rlhf_core.cli.options": ("unsafe_option", "allow_unsafe"),
        "rlhf_core.cli.scoring": ("check_output", "chosen_reward"),
        "rlhf_core.cli.components": ("open_registry",),
    },
    "Studies": {
        "rlhf_core.study.config": ("StudyConfig",),
    },
    "Hook events": {
        "rlhf_core.hooks": (
            "BatchReady",
            "CheckpointSaved",
            "EvalEnd",
            "Launch",
            "PlanResolved",
            "RewardsReady",
            "RolloutsReady",
            "RunEnd",
            "RunStart",
            "StepEnd",
        ),
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
            "Monitor",
            "RewardModel",
            "RolloutEngine",
            "Stateful",
            "Strategy",
            "Study",
            "Tracker",
            "Trainer",
            "Verifier",
        ),
    },
}
"""Topic -> home -> names; ``a as b`` is called ``b`` here."""

_WHERE = {
    name.split(" as ")[-1]: (home, name.split(" as ")[0])
    for homes in TOPICS.values()
    for home, names in homes.items()
    for name in names
}

__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"rlhf_core.sdk has no '{name}'")
    home, inner = _WHERE[name]
    return getattr(import_module(home), inner)


def __dir__() -> list[str]:
    return __all__


def names_by_topic() -> Mapping[str, tuple[str, ...]]:
    """Topic -> its names, sorted; the reference is written from it."""
    return {
        topic: tuple(sorted(n.split(" as ")[-1] for names in homes.values() for n in names))
        for topic, homes in TOPICS.items()
    }
