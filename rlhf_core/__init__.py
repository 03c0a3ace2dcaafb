"""The spine of the rlhf toolkit. Import promised names from :mod:`rlhf_core.api`."""

__version__ = "0.1.0"
