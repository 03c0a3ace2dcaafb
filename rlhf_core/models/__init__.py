"""Models: loading, saving, prompt formats, and parts of the forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.models.config import ModelConfig as ModelConfig
    from rlhf_core.models.last_token import last_token_hidden as last_token_hidden
    from rlhf_core.models.layers.matmul import use_matmul_backend as use_matmul_backend
    from rlhf_core.models.layers.trunk_and_head import on_device as on_device
    from rlhf_core.models.layers.trunk_and_head import pad_rows as pad_rows
    from rlhf_core.models.layers.trunk_and_head import split_lm_head as split_lm_head
    from rlhf_core.models.load import LoadedModel as LoadedModel
    from rlhf_core.models.load import load_policy as load_policy
    from rlhf_core.models.load import load_tokenizer as load_tokenizer
    from rlhf_core.models.paths import ModelPath as ModelPath
    from rlhf_core.models.prompt_format import Formatter as Formatter
    from rlhf_core.models.random_state import preserved_rng as preserved_rng
    from rlhf_core.models.slices import has_meta_weights as has_meta_weights
    from rlhf_core.models.slices import read_elements as read_elements
    from rlhf_core.models.sources import model_paths as model_paths
    from rlhf_core.models.sources import resolve_model as resolve_model
    from rlhf_core.models.sources import weights_digest as weights_digest
    from rlhf_core.models.tensor_files import check_finite as check_finite
    from rlhf_core.types.errors import ModelError as ModelError

__getattr__, __dir__ = surface(__name__)
