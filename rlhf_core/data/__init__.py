"""Prompts, messages, pairs and data sets; files that are read and written whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.data.atomic import whole_folder as whole_folder
    from rlhf_core.data.atomic import write_json as write_json
    from rlhf_core.data.atomic import write_text as write_text
    from rlhf_core.data.completions import read_completions as read_completions
    from rlhf_core.data.config import JsonlConfig as JsonlConfig
    from rlhf_core.data.datasets import Datasets as Datasets
    from rlhf_core.data.files import cache_folder as cache_folder
    from rlhf_core.data.files import check_file as check_file
    from rlhf_core.data.files import read_rows as read_rows
    from rlhf_core.data.jsonl import JsonlFile as JsonlFile
    from rlhf_core.data.jsonl import json_values as json_values
    from rlhf_core.data.jsonl import read_jsonl as read_jsonl
    from rlhf_core.data.manifest import verify_files as verify_files
    from rlhf_core.data.settings import DatasetSettings as DatasetSettings
    from rlhf_core.types.errors import DatasetError as DatasetError
    from rlhf_core.types.messages import PreferencePair as PreferencePair
    from rlhf_core.types.messages import message_text as message_text
    from rlhf_core.types.rollouts import Media as Media
    from rlhf_core.types.rollouts import Message as Message
    from rlhf_core.types.rollouts import Prompt as Prompt
    from rlhf_core.types.rollouts import PromptGroup as PromptGroup
    from rlhf_core.types.rollouts import Tool as Tool
    from rlhf_core.types.rollouts import ToolCall as ToolCall

__getattr__, __dir__ = surface(__name__)
