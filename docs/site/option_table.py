"""Writes conf/options.json, what our classes say of their options: `make pages`."""

import json
from pathlib import Path

from lra.composition.catalogue import choices, groups
from lra.composition.class_path import locate
from lra.composition.option_types import BACKBONE, CLASSES, CONTROL, class_options
from lra.composition.yaml_text import load

FILE = Path(__file__).resolve().parents[2] / "conf" / "options.json"
ROOMS = ("models", "tasks", "runners", "lra")


def class_paths() -> set[str]:
    """Return every class whose options a file of ours, or a group of them, has."""
    files = (load(file) for group in groups() for file in choices(group))
    nodes = [node for file in files for node in (file, file.get("mixer"), file.get("stack"))]
    named = {
        node["class_path"] for node in nodes if isinstance(node, dict) and "class_path" in node
    }
    return {*named, *CLASSES.values(), CONTROL, BACKBONE}


def text() -> str:
    """Return the file: a line for each option."""
    entries = []
    for path in sorted(class_paths()):
        options = class_options(locate(path, (), ROOMS)).items()
        lines = [f'  "{name}": {json.dumps(each, ensure_ascii=False)}' for name, each in options]
        entries.append(f'"{path}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
