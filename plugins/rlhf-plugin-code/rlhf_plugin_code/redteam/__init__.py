"""Attacks on the sandbox; ``python -m rlhf_plugin_code.redteam`` tries all of them on this machine.

An attack prints ``WON`` when it got what it wanted. What it cannot see for itself is looked at from outside: the
secret in its output, the victim process, files, connections, processes left over, the verdict of a test that it must
fail, and the next program. ``@NAME@`` in its code is replaced by what the arena set up.
"""
