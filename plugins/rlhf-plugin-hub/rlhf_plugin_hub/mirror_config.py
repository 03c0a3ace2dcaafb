"""Settings of the mirror of a run; importing this imports no file system."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig


class MirrorConfig(ComponentConfig):
    """Copies each checkpoint and the run's logs to an address of fsspec, and everything at the end; ``rlhf fetch``
    brings the run back. What a run deletes is deleted there too."""

    name: str = "mirror"
    component: ClassVar[str] = "rlhf_plugin_hub.mirror:Mirror"

    to: str = "rlhf-mirror"
    """Such as ``s3://bucket/run``, ``gs://...``, ``sftp://host/folder`` or a folder, without another run."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the file system (fsspec's ``storage_options``), such as ``{endpoint_url: ...}``. They are written
    into the plan: leave keys and passwords to the environment."""
    required: bool = False
    """End the run where a copy fails; otherwise it is warned of, counted in the summary, and the next one is tried."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse an address that cannot be written to."""
        from rlhf_plugin_hub.address import Address

        address = Address.of(self.to, self.options)
        if not ctx.dry_run:
            address.try_writing()
