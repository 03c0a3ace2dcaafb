"""Benchmarks: ``python -m scripts.bench [NAME ...]``.

Each is a module beside this file with a docstring that says what is measured, and either ``run() -> dict`` of JSON
values or ``cases() -> {case: run}``; ``finish(results, folder)``, if there, draws. The results go to
``docs/bench/NAME.json`` with the machine, the commit and the versions; documents quote those files.
"""
