"""Every model of a protocol has the parameters of its source, but for terms that the docs explain.

`published_parameters.csv` holds what the sources have: of `lra_code`, `skyformer`, `rotary`, `s4`,
`s4_v3` and `s4d` counted by building their own modules, of `nystrom`, `self_pretraining` and `s5`
from the shapes in their code.
"""

import csv
from pathlib import Path

import pytest
import torch

from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs" / "deviations.md"


def table():
    with (HERE / "published_parameters.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def terms_of(row):
    """Return what is added to the published number, by its name."""
    found = {}
    for term in filter(None, row["terms"].split("; ")):
        number, _, name = term.partition(" ")
        found[name] = int(number)
    return found


@pytest.mark.share(3)
@pytest.mark.parametrize("protocol", sorted({row["protocol"] for row in table()}))
def test_counts_are_the_sources_but_for_named_terms(protocol):
    wanted = {
        (row["task"], row["model"]): int(row["published"]) + sum(terms_of(row).values())
        for row in table()
        if row["protocol"] == protocol
    }
    counted, known = {}, {}
    for task in dict.fromkeys(task for task, _ in wanted):
        models = ",".join(model for other, model in wanted if other == task)
        words = [f"+protocol={protocol}", f"task={task}", f"model={models}", "logger=none"]
        words += ["task.source=sample"] if task not in {"listops", "pathx"} else []
        for entry in entries(["-m", *words]):
            with torch.device("meta"):
                model = build_model(typed(entry.config, known))
            name = entry.config["model"]["name"]
            counted[task, name] = sum(each.numel() for each in model.parameters())
    assert counted == wanted


def test_the_docs_explain_every_term():
    explained = {
        (protocol.strip("`"), name)
        for line in DOCS.read_text().splitlines()
        if line.startswith("| `") and line.count(" | ") == 2
        for protocols, name, _ in [line.strip("| ").split(" | ")]
        for protocol in protocols.split(", ")
    }
    assert {(row["protocol"], name) for row in table() for name in terms_of(row)} <= explained
