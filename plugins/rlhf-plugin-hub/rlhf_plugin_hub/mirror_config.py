"""Settings of the mirror of a run; importing this imports no file system."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError

SECRET = re.compile(r"secret|password|passphrase|account_key|sas_token|connection_string")


class MirrorConfig(ComponentConfig):
    """Copies each checkpoint and the run's logs to an address of fsspec, and everything at the end; ``rlhf fetch``
    brings the run back. What a run deletes is deleted there too."""

    name: str = "mirror"
    component: ClassVar[str] = "rlhf_plugin_hub.mirror:Mirror"

    to: str
    """Such as ``s3://bucket/run``, ``gs://...``, ``sftp://host/folder`` or a folder, without another run."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the file system (fsspec's ``storage_options``), such as ``{endpoint_url: ...}``. They are written
    into the plan: keys and passwords belong in the environment, and are refused where they can be told."""
    required: bool = False
    """End the run where a copy fails; otherwise it is warned of, counted in the summary, and the next one is tried."""

    @model_validator(mode="after")
    def _no_secret(self) -> MirrorConfig:
        told = "to" if urlsplit(self.to).password else _secret_in(self.options)
        if told:
            raise ConfigError(
                f"trackers: mirror: {told} holds a password or key",
                why="the plan, the card and the mirror itself would hold it",
                fix="leave it to the file system's environment variables or its own configuration",
            )
        return self

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse an address that cannot be written to."""
        from rlhf_plugin_hub.address import Address

        address = Address.of(self.to, self.options)
        if not ctx.dry_run:
            address.try_writing()


def _secret_in(options: Mapping[str, Any]) -> str:
    """The first name of an option that is a secret; "" if none is."""
    for name, value in options.items():
        if SECRET.search(name.lower()):
            return f"options.{name}"
        if isinstance(value, dict) and (inner := _secret_in(value)):
            return inner
    return ""
