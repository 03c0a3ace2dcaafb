"""Files that come with a task, as text: plain text, tables and documents of office programs."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from rlhf_core.rollouts import ToolError

_TEXT, _PARAGRAPH = "t", "p"


class Attachments:
    """Reads some files (name -> path), and no others."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = dict(files)

    def call(self, path: str) -> str:
        """The text of a file; of '.' their names."""
        name = path.strip().removeprefix("./").lstrip("/")
        if name in ("", "."):
            return "\n".join(self.files)
        if name not in self.files:
            raise ToolError(f"there is no file '{path}'; there are {', '.join(self.files)}")
        return text_of(self.files[name])


def text_of(file: Path) -> str:
    """A file as text: sheets as comma separated lines, paragraphs as lines, an archive as the names in it."""
    try:
        match file.suffix.lower():
            case ".xlsx":
                return _sheets(file)
            case ".docx":
                return _paragraphs(file, ["word/document.xml"])
            case ".pptx":
                return _paragraphs(file, _parts(file, r"ppt/slides/slide\d+\.xml"))
            case ".zip":
                return "\n".join(zipfile.ZipFile(file).namelist())
            case _:
                return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ToolError(f"'{file.name}' is not text; pictures, sounds and PDF cannot be read here") from error
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError) as error:
        raise ToolError(f"'{file.name}' is broken: {error}") from error


def _parts(file: Path, pattern: str) -> list[str]:
    """Names inside of an archive, by the number in them."""
    with zipfile.ZipFile(file) as archive:
        names = [n for n in archive.namelist() if re.fullmatch(pattern, n)]
    return sorted(names, key=lambda n: int("".join(re.findall(r"\d", n))))


def _paragraphs(file: Path, parts: list[str]) -> str:
    with zipfile.ZipFile(file) as archive:
        roots = [ElementTree.fromstring(archive.read(part)) for part in parts]
    lines = [
        "".join(t.text or "" for t in node.iter() if _tag(t) == _TEXT)
        for root in roots
        for node in root.iter()
        if _tag(node) == _PARAGRAPH
    ]
    return "\n".join(line for line in lines if line)


def _sheets(file: Path) -> str:
    with zipfile.ZipFile(file) as archive:
        shared: list[str] = []
        if "xl/sharedStrings.xml" in archive.namelist():
            strings = ElementTree.fromstring(archive.read("xl/sharedStrings.xml"))
            shared = ["".join(t.text or "" for t in node.iter() if _tag(t) == _TEXT) for node in strings]
        lines: list[str] = []
        for number, part in enumerate(_parts(file, r"xl/worksheets/sheet\d+\.xml"), start=1):
            lines.append(f"[sheet {number}]")
            root = ElementTree.fromstring(archive.read(part))
            lines += [_row(row, shared) for row in root.iter() if _tag(row) == "row"]
    return "\n".join(lines)


def _row(row: ElementTree.Element, shared: list[str]) -> str:
    """A row's cells, each in the column that its reference (``C7``) names."""
    cells: list[str] = []
    for cell in row:
        letters = re.match("[A-Z]+", cell.get("r", ""))
        column = _column(letters[0]) if letters else len(cells) + 1
        cells += [""] * (column - 1 - len(cells))
        value = "".join(v.text or "" for v in cell.iter() if _tag(v) in ("v", _TEXT))
        cells.append(shared[int(value)] if cell.get("t") == "s" and value else value)
    return ",".join(cells)


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def _tag(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2]
