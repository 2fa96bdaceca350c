"""Protocols: the published settings of a task in one word, beaten by the command line alone."""

import pytest

from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.errors import ConfigError


def config(*words: str):
    (entry,) = entries(list(words))
    return entry.config


def run(*words: str):
    """Return the typed run; the sample stands in for data that are not here."""
    sample = [] if "task=listops" in words else ["task.source=sample"]
    return typed(config(*words, *sample))


def test_a_task_that_a_protocol_does_not_know():
    with pytest.raises(ConfigError, match="no settings for task=mnist, but for the tasks listops"):
        config("+protocol=nystrom", "task=mnist")
    with pytest.raises(ConfigError, match="unknown task 'listop'"):
        config("++for_task={listop: {}}")


@pytest.mark.parametrize(
    ("words", "made"),
    [(("task=pathfinder", f"task.side={side}"), made)
     for side, made in ((64, "pathfinder64"), (128, "pathx"), (256, "path256"))],
)  # fmt: skip
def test_options_that_make_another_task_than_the_one_a_protocol_knows(words, made):
    with pytest.raises(ConfigError, match=f"is the same as task={made}, .* Choose task={made}"):
        run("+protocol=mega", *words)
    assert run(*words).task.spec.name == made  # without a protocol it is the user's own choice


@pytest.mark.parametrize("runner", ["scaling", "certify", "decode", "transfer"])
def test_a_protocol_fits_every_runner(runner):
    found = run("+protocol=mega", "task=text", f"runner={runner}", "model=local")
    assert getattr(found.runner, "evaluate_every_steps", 500) == 500
    assert found.backbone.width == 128


def test_the_arena_tunes_texts_on_their_test_split():
    assert run("+protocol=lra_code", "task=text").task_options["validation"] == "test"
