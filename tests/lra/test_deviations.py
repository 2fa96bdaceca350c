"""The table of what remains different from the sources of protocols is what their files say."""

import re
from pathlib import Path

import yaml
from program_tables import written

from lra.composition.catalogue import choices
from lra.composition.own_options import TABLES

DOCS = Path(__file__).parents[2] / "docs" / "protocols.md"


def found(node, place=()):
    """Yield (name, sentence, where it holds) of one file's node."""
    for name, sentence in (node.get("deviations") or {}).items():
        if isinstance(sentence, dict):
            ((option, values),) = sentence.items()
            for value, text in values.items():
                yield name, text, (*place, f"`{option}={value}`")
        elif sentence is not None:  # as where one does not hold
            yield name, sentence, place
    for table in TABLES:
        for choice, entry in (node.get(table) or {}).items():
            yield from found(entry, (*place, choice))


def test_the_docs_name_the_tasks_of_each_protocol():
    files = {file.stem: yaml.safe_load(file.read_text()) for file in choices("protocol")}
    same, said = ", ".join(files["nystrom"]["for_task"]), {}
    for line in DOCS.read_text().partition("## Run a whole table")[0].splitlines():
        if line.startswith("| `") and line.count("|") == 5:
            names, _, _, tasks = (cell.strip() for cell in line.strip("|").split("|"))
            for name in names.replace("`", "").split(", "):
                said[name] = {*tasks.replace("the same", same).split(", ")}
    assert {name: said[name] for name in files} == {
        name: {*file["for_task"]} for name, file in files.items()
    }


def test_the_page_of_deviations_has_every_sentence_and_where_it_holds():
    text = DOCS.with_name("deviations.md").read_text(encoding="utf-8")
    assert written(text) == text, "make pages writes these tables"
    said = set()
    for part in text.split("\n### `")[1:]:
        lines = [line.strip("| ").split(" | ", 3) for line in part.splitlines() if " | " in line]
        assert len({(name, *what) for name, _, *what in lines}) == len(lines)
        for name, where, there, here in lines[1:]:
            what = there if here == "–" else f"{there}; here {here}"
            said |= {(part.partition("`")[0], name, place, what) for place in where.split(", ")}
    assert said == {
        (file.stem, name, " with ".join(place) or "everywhere", without_there(sentence))
        for file in choices("protocol")
        for name, sentence, place in found(yaml.safe_load(file.read_text()))
    }


def without_there(sentence):
    return sentence if sentence.startswith("there is") else re.sub(r"^there,? ", "", sentence)
