"""What runs in the sandbox's own processes: the standard library and nothing else.

``zygote`` is trusted and waits outside of what it isolates; ``guest`` shares its interpreter with a hostile program,
so nothing that it says is believed but as that program's answer; ``harness`` runs the tests, in a process of its own.
"""
