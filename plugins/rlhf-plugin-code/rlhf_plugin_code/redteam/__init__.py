"""Attacks on the sandbox, tried by ``python -m rlhf_plugin_code.redteam``. An attack prints ``WON``, or is found out
from outside: by its secret, processes, files, connections, verdicts, the next program. ``@NAME@`` is filled in."""
