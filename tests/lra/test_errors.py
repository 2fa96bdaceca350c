import pytest

from lra.errors import near, plural, unknown


def test_an_unknown_name_is_answered_with_near_matches_and_the_list():
    text = unknown("model", "perfomer", ["softmax", "performer", "linear"])
    assert text == (
        "unknown model 'perfomer': did you mean 'performer'? "
        "Known models: linear, performer, softmax."
    )


def test_a_name_like_no_other_gets_the_list_alone():
    text = unknown("task", "zzz", ["listops", "text"], way_out="See the docs.")
    assert text == "unknown task 'zzz'. Known tasks: listops, text. See the docs."


def test_of_many_names_the_near_ones_alone():
    many = [f"model{number}" for number in range(40)]
    assert unknown("model", "modle7", many).endswith("Known models: all 40 by lra list models.")
    text = unknown("task", "zzz", many)
    assert len(text) < 250
    assert text.endswith("… all 40 by lra list tasks.")


def test_nothing_is_said_to_list_what_it_does_not() -> None:
    many = [f"metric{number}" for number in range(40)]
    assert unknown("metric", "metirc7", many).endswith("?")
    assert unknown("metric", "zzz", many).endswith("… all 40.")


def test_names_of_results_are_not_those_that_a_list_has() -> None:
    many = [f"model{number}" for number in range(40)]
    assert unknown("model", "modle7", many, listed=False).endswith("?")
    assert unknown("model", "zzz", many, listed=False).endswith("… all 40.")


def test_nothing_to_choose_from_is_said():
    assert unknown("sweep", "a", []) == "unknown sweep 'a'. There are no sweeps to choose from."


def test_case_does_not_hide_a_match():
    assert near("sdpa", ["SDPA", "Softmax"]) == ["SDPA"]
    assert near("zzz", ["SDPA"]) == []


@pytest.mark.parametrize(
    ("word", "many"),
    [
        ("model", "models"),
        ("hardware", "hardware"),
        ("option of Performer", "options of Performer"),
        ("entry", "entries"),
        ("key", "keys"),
        ("class", "classes"),
    ],
)
def test_plural(word, many):
    assert plural(word) == many
