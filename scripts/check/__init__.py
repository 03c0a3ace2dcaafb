"""Structure checks of this repository: ``python -m scripts.check [NAME ...] [--root PATH]``.

Each check is a module with ``check(root) -> list[str]``: one line per problem, none when all is well.
"""
