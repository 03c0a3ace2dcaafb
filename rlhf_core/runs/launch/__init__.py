"""Processes of a run: from a configuration to a finished run, alone or as ranks."""
