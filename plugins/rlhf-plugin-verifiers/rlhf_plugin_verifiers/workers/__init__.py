"""The one host of killable processes; plugins whose components run in processes of their own import from here."""

from __future__ import annotations

from rlhf_plugin_verifiers.workers.codec import pack as pack
from rlhf_plugin_verifiers.workers.codec import sample_from_json as sample_from_json
from rlhf_plugin_verifiers.workers.codec import sample_to_json as sample_to_json
from rlhf_plugin_verifiers.workers.codec import score_from_json as score_from_json
from rlhf_plugin_verifiers.workers.codec import score_to_json as score_to_json
from rlhf_plugin_verifiers.workers.pool import VerifierPool as VerifierPool
from rlhf_plugin_verifiers.workers.worker import children as children
from rlhf_plugin_verifiers.workers.worker import explain as explain
from rlhf_plugin_verifiers.workers.worker import forks_safely as forks_safely
from rlhf_plugin_verifiers.workers.worker import limit_memory as limit_memory
from rlhf_plugin_verifiers.workers.worker import lines_of as lines_of
from rlhf_plugin_verifiers.workers.worker import planned_config as planned_config
from rlhf_plugin_verifiers.workers.worker import tie_to_parent as tie_to_parent
from rlhf_plugin_verifiers.workers.worker_handle import EXIT_GRACE_S as EXIT_GRACE_S
from rlhf_plugin_verifiers.workers.worker_handle import descendants as descendants
from rlhf_plugin_verifiers.workers.worker_handle import without_secrets as without_secrets
from rlhf_plugin_verifiers.workers.worker_handle import worker_spec as worker_spec
