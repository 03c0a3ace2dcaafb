"""Benchmarks: ``python -m scripts.bench [NAME ...]``.

Each is a module beside this file with ``run() -> dict`` of JSON values and a docstring that says what is measured.
The result goes to ``docs/bench/NAME.json`` with the machine and the versions; documents quote those files.
"""
