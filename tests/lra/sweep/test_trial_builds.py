"""Values that a model refuses are refused before anything runs."""

import copy

import pytest

from lra.composition.catalogue import names
from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import only_entry
from lra.errors import ConfigError
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.sweep.trial_builds import TrialBuilds
from tests.contracts.choices_of_configs import CAUSAL_ALONE


@pytest.mark.share(2)
@pytest.mark.parametrize("name", names("model"))
def test_numbers_below_zero_are_refused_with_their_value(name: str) -> None:
    task = "induction" if name in CAUSAL_ALONE else "listops"
    base = only_entry([f"task={task}", f"model={name}"]).config
    part = "mixer" if "mixer" in base["model"] else "stack"
    for option, default in base["model"][part].items():
        if type(default) in (int, float):
            config = copy.deepcopy(base)
            config["model"][part][option] = -type(default)(1)
            with pytest.raises((ConfigError, Unsupported), match="-1"):
                TrialBuilds().check(typed(config), 1000)


def test_a_fault_of_a_class_from_elsewhere_is_none_of_its_options(monkeypatch) -> None:
    run = typed(only_entry(["task=listops", "model=softmax"]).config)

    def faulty(*_: object, **__: object) -> None:
        raise ValueError("not enough values to unpack")

    monkeypatch.setattr(SoftmaxAttention, "__init__", faulty)
    with pytest.raises(Unsupported, match="unpack"):
        build_model(run)
    monkeypatch.setattr("lra.composition.compose.are_bundled", lambda *_: False)
    with pytest.raises(ValueError, match="unpack") as raised:
        build_model(run)
    assert not isinstance(raised.value, Unsupported)
