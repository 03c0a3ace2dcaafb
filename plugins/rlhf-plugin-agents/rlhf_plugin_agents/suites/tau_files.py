"""Files of tau-bench's domains: JSON files, or a checkout of the published repository (read, never run)."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_core.data import DatasetError
from rlhf_plugin_agents.suites.airline import AirlineStore
from rlhf_plugin_agents.suites.retail import RetailStore
from rlhf_plugin_agents.suites.tau_store import Store

STORES: Mapping[str, type[Store]] = {"retail": RetailStore, "airline": AirlineStore}
OF_A_DOMAIN = {"retail": "orders.json", "airline": "flights.json"}
"""By which table a published folder is told from the other's."""


def domain_in(folder: Path, domain: str | None = None) -> str:
    """The domain that is asked for, or whose files a folder has; retail where it has both or none."""
    if domain is not None:
        return domain
    users = {d: [folder / f"{d}_db_users.json{end}" for end in ("", ".gz")] for d in STORES}
    return next((d for d in STORES if any(f.is_file() for f in users[d]) or _published(folder, d)), "retail")


def _published(folder: Path, domain: str) -> Path | None:
    """The domain's folder of a checkout, if the folder is one or the checkout itself."""
    for candidate in (folder, folder / domain, folder / "tau_bench" / "envs" / domain):
        if (candidate / "data" / OF_A_DOMAIN[domain]).is_file():
            return candidate
    return None


@cache
def read(folder: Path, name: str) -> Any:
    """A file of a domain such as ``airline_tools.json``, ``.gz`` or not, or what a checkout has in its place."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
            try:
                return text if name.endswith(".md") else json.loads(text)
            except ValueError as error:
                raise DatasetError(f"'{path}' is not JSON: {error}") from error
    domain, _, rest = name.partition("_")
    checkout = _published(folder, domain) if domain in STORES else None
    if checkout is not None:
        try:
            return _of_checkout(checkout, rest)
        except (OSError, ValueError, SyntaxError, KeyError) as error:
            raise DatasetError(f"'{rest}' cannot be read from the checkout in '{checkout}': {error}") from error
    tables = ", ".join(f"{domain}_db_{t}.json" for t in STORES[domain].tables) if domain in STORES else name
    raise DatasetError(
        f"suite 'tau_bench': there is no '{name}' in '{folder}'",
        fix=f"--data FOLDER with {tables}, {domain}_tools.json, {domain}_wiki.md and {domain}_tasks_test.json "
        "(.gz too), or a checkout of sierra-research/tau-bench",
    )


def database(folder: Path, domain: str = "retail") -> dict[str, Any]:
    """Every table; shared, so copy it before anything is changed."""
    return {table: read(folder, f"{domain}_db_{table}.json") for table in STORES[domain].tables}


def open_store(folder: Path, domain: str) -> Store:
    return STORES[domain](database(folder, domain))


@cache
def domain_digest(folder: Path, domain: str = "retail") -> str:
    """Digest of the database and of what is offered, as the files have them."""
    domain_files = [database(folder, domain), read(folder, f"{domain}_tools.json")]
    return hashlib.sha256(json.dumps(domain_files, sort_keys=True).encode()).hexdigest()


def _of_checkout(checkout: Path, name: str) -> Any:
    if name.startswith("db_"):
        return json.loads((checkout / "data" / name.removeprefix("db_")).read_text(encoding="utf-8"))
    if name == "wiki.md":
        return (checkout / name).read_text(encoding="utf-8")
    if name == "tools.json":
        return _specs(checkout / "tools")
    tasks = _assigned(checkout / f"{name.removesuffix('.json')}.py", "TASKS")
    return [{"outputs": [], **_value(node)} for node in tasks.elts]


def _specs(folder: Path) -> list[Any]:
    """What the tools' ``get_info`` returns, in the order in which they are offered."""
    literals: dict[str, Any] = {}
    for file in sorted(folder.glob("[a-z]*.py")):
        for tool in (n for n in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(n, ast.ClassDef)):
            for part in tool.body:
                if isinstance(part, ast.FunctionDef) and part.name == "get_info":
                    (result,) = [s for s in part.body if isinstance(s, ast.Return)]
                    literals[tool.name] = ast.literal_eval(result.value or ast.Constant(None))
    listed = _assigned(folder / "__init__.py", "ALL_TOOLS")
    return [literals[name.id] for name in listed.elts if isinstance(name, ast.Name)]


def _assigned(file: Path, prefix: str) -> ast.List:
    """The list that a file gives a name that begins so."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        named = any(isinstance(t, ast.Name) and t.id.startswith(prefix) for t in targets)
        if named and isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.List):
            return node.value
    raise ValueError(f"{file.name} has no list {prefix}")


def _value(node: ast.expr) -> Any:
    """A literal; ``Task(...)`` and ``Action(...)`` are mappings of what they are given."""
    match node:
        case ast.Call(keywords=keywords):
            return {str(k.arg): _value(k.value) for k in keywords}
        case ast.List(elts=elements):
            return [_value(e) for e in elements]
        case _:
            return ast.literal_eval(node)
