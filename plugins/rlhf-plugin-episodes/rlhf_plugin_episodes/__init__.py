"""Environments and tools of multi-turn episodes, each episode in a process of its own that may be killed."""
