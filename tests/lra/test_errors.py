import re

import pytest

from lra.errors import near, plural, unknown

MANY = [f"model{number}" for number in range(40)]
ANSWERS = [
    (("model", "perfomer", ["softmax", "performer", "linear"]), {},
     r"unknown model 'perfomer': did you mean 'performer'\? "
     r"Known models: linear, performer, softmax\."),
    (("task", "zzz", ["listops", "text"]), {"way_out": "See the docs."},
     r"unknown task 'zzz'\. Known tasks: listops, text\. See the docs\."),
    # of many names the near ones alone, and no list that `lra list` does not have
    (("model", "modle7", MANY), {}, r".{0,150}\? `lra list models` prints all 40\."),
    (("task", "zzz", MANY), {}, r".{0,220}… `lra list tasks` prints all 40\."),
    (("metric", "metirc7", [f"metric{number}" for number in range(40)]), {}, r".*\?"),
    (("metric", "zzz", MANY), {}, r".*… \(40 in all\)\."),
    (("model", "modle7", MANY), {"listed": False}, r".*\?"),
    (("model", "zzz", MANY), {"listed": False}, r".*… \(40 in all\)\."),
    # a name in other letters
    (("protocol", "S4D", ["s4", "s4d"]), {}, r"unknown protocol 'S4D': did you mean 's4d'.*"),
    (("protocol", "S4-V1", ["s4", "s4_v1"]), {}, r".*did you mean 's4_v1'\?.*"),
    (("model", "S4D", ["s4", "s5"]), {}, ".*lra calls it 's4'.*"),
    (("model", "FlashAttention-2", ["sdpa", "linear"]), {}, ".*lra calls it 'sdpa'.*"),
    (("sweep", "a", []), {}, r"unknown sweep 'a'\. There are no sweeps to choose from\."),
]  # fmt: skip


@pytest.mark.parametrize(("words", "options", "answer"), ANSWERS)
def test_an_unknown_name_is_answered_with_near_matches_or_the_list(words, options, answer):
    assert re.fullmatch(answer, unknown(*words, **options))


def test_case_does_not_hide_a_match():
    assert near("sdpa", ["SDPA", "Softmax"]) == ["SDPA"]
    assert near("zzz", ["SDPA"]) == []


@pytest.mark.parametrize(
    ("word", "many"),
    [("model", "models"), ("hardware", "hardware"), ("option of Performer", "options of Performer"),
     ("entry", "entries"), ("key", "keys"), ("class", "classes")],
)  # fmt: skip
def test_plural(word, many):
    assert plural(word) == many
