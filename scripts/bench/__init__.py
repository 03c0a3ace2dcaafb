"""Measurements: ``python -m scripts.bench [NAME ...] [KEY=VALUE ...]``.

Each is a module beside this file with a docstring that says what is measured, and either ``run(...) -> dict`` of JSON
values or ``cases(...) -> {case: run}``; their keywords are its settings. The results go to ``docs/bench/NAME.json``
with the machine, the commit and the versions; ``records.toml`` says which figures the documents quote.
"""
