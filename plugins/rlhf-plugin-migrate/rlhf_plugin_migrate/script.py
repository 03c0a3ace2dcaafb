"""A Python script that trains with TRL as flat keys and values: what its trainer, config, model and data are made of.

Nothing is run. A name stands for its value if the file binds it once; everything else is handed on as text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_plugin_migrate.tables import Table

LOADING = {"streaming", "num_proc", "cache_dir", "token", "trust_remote_code", "keep_in_memory", "verification_mode"}
"""Arguments of ``load_dataset`` that do not change the rows."""
TRAIN, HELD_OUT = "dataset_train_split", "dataset_test_split"


class Unread(Exception):
    """Only running the script gives the value."""


class Script:
    """Reads one training: a trainer with what it is given, or only a config."""

    def __init__(self, tree: ast.Module, table: Table) -> None:
        self.table = table
        self.bound: dict[str, list[ast.expr | None]] = {}
        """Name, or ``.attribute`` -> what it is bound to; None for what is no expression, such as a parameter."""
        for name, value in _bindings(tree):
            self.bound.setdefault(name, []).append(value)
        self.classes = dict(_classes(tree, {*table.classes, *table.trainers}))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self.calls = sorted(calls, key=lambda call: call.lineno)
        self.settings: dict[str, Any] = {}
        self.unread: dict[str, str] = {}
        self.used: set[ast.Call] = set()

    def read(self, trainer: ast.Call | None, config: ast.Call | None) -> None:
        if trainer is not None:
            self._trainer(trainer)
        if config is not None and "args" not in self.unread and not any(map(self.configures, self.used)):
            self._settings(config)
        for template in self.bound.get(".chat_template", []):
            self._add("chat_template", template or ast.Constant(None))

    def configures(self, call: ast.Call) -> bool:
        return self.classes.get(called(call)) in self.table.classes

    def _trainer(self, call: ast.Call) -> None:
        self.used.add(call)
        arguments = self._arguments(call, self.table.trainers[self.classes[called(call)]])
        for key, value in sorted(arguments.items(), key=lambda item: item[0] != "model"):
            node = self._node(value)
            if key in ("train_dataset", "eval_dataset"):
                self._dataset(key, value)
            elif not isinstance(node, ast.Call):
                self._add(key, value)
            elif self.configures(node) or called(node) == "LoraConfig":
                self._settings(node)
            elif called(node) != "from_pretrained":
                self._add(key, value)
            elif key == "model":
                self._settings(node, ("model",))
            else:
                self._add(key, node.args[0] if node.args else value)

    def _dataset(self, key: str, value: ast.expr) -> None:
        """``load_dataset`` and a split of it; rows that the script makes or changes are its own."""
        with suppress(Unread):
            loaded = self._loaded(value)
            if key == "train_dataset":
                self.settings |= loaded
                return
            if all(self.settings.get(k) == v for k, v in loaded.items() if k != TRAIN):
                self.settings[HELD_OUT] = loaded.get(TRAIN, "train")
                return
        self.unread[key] = self.text(value)

    def _loaded(self, value: ast.expr) -> dict[str, Any]:
        """What ``load_dataset`` was given, by keys of TRL's script arguments."""
        node, part = self._node(value), None
        if isinstance(node, ast.Subscript):
            node, part = self._node(node.value), node.slice
        if not isinstance(node, ast.Call) or called(node) != "load_dataset":
            raise Unread
        arguments = self._arguments(node, ("path", "name", "data_dir", "data_files", "split"))
        given = {k: self._value(v) for k, v in arguments.items() if k not in LOADING}
        given |= {} if part is None else {"split": self._value(part)}
        path, files = given.pop("path", None), given.pop("data_files", None)
        if files is not None and path in ("json", "parquet", "csv", "text") and given.pop("split", "train") == "train":
            path, files = files, None
        if files is not None or not isinstance(path, str) or not {*given} <= {"name", "split"}:
            raise Unread
        return {"dataset_name": path, **{{"name": "dataset_config", "split": TRAIN}[k]: v for k, v in given.items()}}

    def _settings(self, call: ast.Call, parameters: Sequence[str] = ()) -> None:
        """What a config, an adapter or ``from_pretrained`` is given."""
        self.used.add(call)
        self.settings |= {"use_peft": True} if called(call) == "LoraConfig" else {}
        if beyond := call.args[len(parameters) :]:
            self.unread["positional arguments"] = ", ".join(map(ast.unparse, beyond))
        for key, value in self._arguments(call, parameters).items():
            self._add(key, value)

    def _arguments(self, call: ast.Call, parameters: Sequence[str] = ()) -> dict[str, ast.expr]:
        """Arguments by their parameters, those of a mapping that is written out included."""
        given = dict(zip(parameters, call.args))
        for keyword in call.keywords:
            node = self._node(keyword.value)
            if keyword.arg is not None:
                given[keyword.arg] = keyword.value
            elif isinstance(node, ast.Call) and called(node) == "dict" and not node.args:
                given |= self._arguments(node)
            elif isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
                given |= {str(getattr(key, "value", "")): value for key, value in zip(node.keys, node.values)}
            else:
                self.unread[f"**{ast.unparse(keyword.value)}"] = self.text(keyword.value)
        return given

    def _add(self, key: str, value: ast.expr) -> None:
        key = self.table.renamed.get(key, key)
        try:
            self.settings[key] = self._value(value)
        except Unread:
            self.unread[key] = self.text(value)

    def _node(self, node: ast.expr) -> ast.expr:
        """What a name stands for; other expressions as they are."""
        for _ in range(20):  # a name may stand for another
            bound = self.bound.get(node.id, []) if isinstance(node, ast.Name) else []
            if len(bound) != 1 or bound[0] is None:
                break
            node = bound[0]
        return node

    def _value(self, given: ast.expr) -> Any:
        """The value of an expression of literals, names and f-strings."""
        node = self._node(given)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(one) for one in node.elts]
        if isinstance(node, ast.JoinedStr):
            return "".join(str(self._value(part)) for part in node.values)
        if isinstance(node, ast.FormattedValue) and node.format_spec is None and node.conversion == -1:
            return self._value(node.value)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return node.attr
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            raise Unread from error

    def text(self, node: ast.expr) -> str:
        """An expression for a message, with what its name is bound to."""
        bound = self.bound.get(node.id, []) if isinstance(node, ast.Name) else []
        texts = [ast.unparse(one) for one in bound if one is not None]
        return ast.unparse(node) + (f" = {', then '.join(texts)}" if texts else "")


def read_script(text: str, path: str, table: Table, wanted: str | None) -> tuple[str, Script]:
    """The class that a script configures, and its settings; what else trains or configures in it is reported.

    Args:
        wanted: the class to translate, where a script trains several times; None takes the first.
    """
    try:
        tree = ast.parse(text, path)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"'{path}' is not Python", why=str(error)) from error
    script = Script(tree, table)
    first = {script.classes.get(called(call)): call for call in reversed(script.calls)}
    named = [script.classes.get(node.id) for node in ast.walk(tree) if isinstance(node, ast.Name)]
    kinds = [name.replace("Trainer", "Config") for name in (*reversed(first), *named) if name]
    cls = next((name for name in kinds if wanted in (None, name)), "")
    if not cls:
        known = f"known: {', '.join(table.classes) or 'none'}, and their trainers"
        raise ConfigError(f"'{path}' calls no trainer and no configuration class of {table.peer}", why=known)
    script.read(first.get(cls.replace("Config", "Trainer")), first.get(cls))
    for call in script.calls:
        configures = called(call) in script.classes or called(call).endswith("Config")
        if configures and call not in script.used and (call.args or call.keywords):
            script.unread[f"{called(call)} in line {call.lineno}"] = ast.unparse(call)
    return cls, script


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    values: dict[ast.AST, ast.expr] = {}
    for node in ast.walk(tree):  # a statement comes before the names in it
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            values |= dict.fromkeys(node.targets if isinstance(node, ast.Assign) else [node.target], node.value)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else f".{node.attr}", values.get(node)
        elif isinstance(node, ast.arg):
            yield node.arg, None


def _classes(tree: ast.Module, known: set[str]) -> Iterator[tuple[str, str]]:
    """The script's names of the library's classes: as they are, imported under another, or of a class made of one."""
    names = {name: name for name in known}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {a.asname: a.name for a in node.names if a.asname and a.name in known}
        elif isinstance(node, ast.ClassDef):
            bases = [getattr(base, "attr", getattr(base, "id", "")) for base in node.bases]
            names |= dict.fromkeys([node.name], next((names[base] for base in bases if base in names), ""))
    yield from ((name, cls) for name, cls in names.items() if cls)


def called(call: ast.Call) -> str:
    """The last name of what is called: ``from_pretrained``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
