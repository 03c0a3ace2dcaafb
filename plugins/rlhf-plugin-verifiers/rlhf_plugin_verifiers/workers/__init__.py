"""The one host of killable processes; plugins whose components run in processes of their own import from here."""

from __future__ import annotations

from rlhf_plugin_verifiers.workers.codec import pack as pack
from rlhf_plugin_verifiers.workers.codec import sample_from_json as sample_from_json
from rlhf_plugin_verifiers.workers.codec import sample_to_json as sample_to_json
from rlhf_plugin_verifiers.workers.codec import score_from_json as score_from_json
from rlhf_plugin_verifiers.workers.codec import score_to_json as score_to_json
from rlhf_plugin_verifiers.workers.fork_server import ForkServer as ForkServer
from rlhf_plugin_verifiers.workers.fork_server import forks_safely as forks_safely
from rlhf_plugin_verifiers.workers.killable import KillableProcess as KillableProcess
from rlhf_plugin_verifiers.workers.killable import descendants as descendants
from rlhf_plugin_verifiers.workers.killable import how_ended as how_ended
from rlhf_plugin_verifiers.workers.killable import python_command as python_command
from rlhf_plugin_verifiers.workers.killable import receive as receive
from rlhf_plugin_verifiers.workers.killable import send as send
from rlhf_plugin_verifiers.workers.killable import sigkill as sigkill
from rlhf_plugin_verifiers.workers.pool import VerifierPool as VerifierPool
from rlhf_plugin_verifiers.workers.worker import begin as begin
from rlhf_plugin_verifiers.workers.worker import build_planned as build_planned
from rlhf_plugin_verifiers.workers.worker import lines_of as lines_of
from rlhf_plugin_verifiers.workers.worker_handle import worker_spec as worker_spec
