"""A Python script that trains with TRL as flat keys and values: what its trainer, config, model and data are made of.

Nothing is run. A name stands for its value if the file binds it once; everything else is handed on as text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_plugin_migrate.tables import Table

LOADING = {"streaming", "num_proc", "cache_dir", "token", "trust_remote_code", "keep_in_memory", "verification_mode"}
"""Arguments of ``load_dataset`` that do not change the rows."""
RENAMED = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "revision": "model_revision",
}
"""Arguments of ``LoraConfig`` and ``from_pretrained`` -> TRL's keys, where those have other names."""
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
        if config is not None and "args" not in self.unread and not any(map(self.configures, self.used - {trainer})):
            self._keywords(config)
        for template in self.bound.get(".chat_template", []):
            self._add("chat_template", template or ast.Constant(None))

    def configures(self, call: ast.Call | None) -> bool:
        return call is not None and self.classes.get(called(call)) in self.table.classes

    def _trainer(self, call: ast.Call) -> None:
        self.used.add(call)
        parameters = self.table.trainers[self.classes[called(call)]]
        given = dict(zip(parameters, call.args)) | self._expanded(call)
        for key, value in sorted(given.items(), key=lambda item: item[0] != "model"):
            node = self._node(value)
            name = called(node) if isinstance(node, ast.Call) else ""
            if key == "model":
                self._model(value, node, name)
            elif key in ("train_dataset", "eval_dataset"):
                self._dataset(key, value)
            elif isinstance(node, ast.Call) and ((key == "args" and self.configures(node)) or name == "LoraConfig"):
                self.settings |= {"use_peft": True} if name == "LoraConfig" else {}
                self._keywords(node)
            elif isinstance(node, ast.Call) and name == "from_pretrained" and node.args:
                self._add(key, node.args[0])
            else:
                self._add(key, value)

    def _model(self, value: ast.expr, node: ast.expr, name: str) -> None:
        """A path, or ``from_pretrained`` of one with its settings."""
        given = self._expanded(node) if isinstance(node, ast.Call) and name == "from_pretrained" else {}
        paths = [given.pop(key) for key in ("pretrained_model_name_or_path", "model_name") if key in given]
        paths += node.args if isinstance(node, ast.Call) and name == "from_pretrained" else []
        self._add("model_name_or_path", paths[0] if paths else value)
        for key, setting in given.items():
            self._add(RENAMED.get(key, key), setting)

    def _dataset(self, key: str, value: ast.expr) -> None:
        """``load_dataset`` and a split of it; rows that the script makes or changes are its own."""
        try:
            loaded = self._loaded(value)
        except Unread:
            loaded = {}
        same_rows = all(self.settings.get(k) == v for k, v in loaded.items() if k != TRAIN)
        if loaded and key == "train_dataset":
            self.settings |= loaded
        elif loaded and same_rows:
            self.settings[HELD_OUT] = loaded.get(TRAIN, "train")
        else:
            self.unread[key] = self.text(value)

    def _loaded(self, value: ast.expr) -> dict[str, Any]:
        """What ``load_dataset`` was given, by keys of TRL's script arguments."""
        node, part = self._node(value), None
        if isinstance(node, ast.Subscript):
            node, part = self._node(node.value), node.slice
        if not isinstance(node, ast.Call) or called(node) != "load_dataset":
            raise Unread
        arguments = dict(zip(("path", "name", "data_dir", "data_files", "split"), node.args)) | self._expanded(node)
        given = {k: self._value(v) for k, v in arguments.items() if k not in LOADING}
        given |= {} if part is None else {"split": self._value(part)}
        path, files = given.pop("path", None), given.pop("data_files", None)
        if files is not None and path in ("json", "parquet", "csv", "text") and given.pop("split", "train") == "train":
            path, files = files, None
        if files is not None or not isinstance(path, str) or not {*given} <= {"name", "split"}:
            raise Unread
        return {"dataset_name": path, **{{"name": "dataset_config", "split": TRAIN}[k]: v for k, v in given.items()}}

    def _keywords(self, call: ast.Call) -> None:
        self.used.add(call)
        if call.args:
            self.unread["positional arguments"] = ", ".join(map(ast.unparse, call.args))
        for key, value in self._expanded(call).items():
            self._add(RENAMED.get(key, key) if called(call) == "LoraConfig" else key, value)

    def _expanded(self, call: ast.Call) -> dict[str, ast.expr]:
        """Keyword arguments, those of a mapping that is written out included."""
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        for mapping in (keyword.value for keyword in call.keywords if keyword.arg is None):
            node = self._node(mapping)
            if isinstance(node, ast.Call) and called(node) == "dict" and not node.args:
                given |= self._expanded(node)
            elif isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
                given |= {str(getattr(key, "value", "")): value for key, value in zip(node.keys, node.values)}
            else:
                self.unread[f"**{ast.unparse(mapping)}"] = self.text(mapping)
        return given

    def _add(self, key: str, value: ast.expr) -> None:
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
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(f"'{path}' is not Python", where=f"line {error.lineno}", why=str(error.msg)) from error
    except ValueError as error:
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
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    values |= zip(target.elts, node.value.elts)
                else:
                    values[target] = node.value
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
