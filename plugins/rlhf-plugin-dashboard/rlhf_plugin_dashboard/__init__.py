"""Runs as they go, in a browser on this machine."""
