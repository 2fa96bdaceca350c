"""Hardware profiles and loggers: what their files say fits what reads them."""

from dataclasses import fields

import pytest

from lra.composition.binding import bind
from lra.composition.catalogue import names
from lra.composition.compose import group_file
from lra.runners.measurement.hardware import Device, HardwareProfile, Precision

PUBLISHED = {"a100": (312e12, 2.039e12), "h100": (989.5e12, 3.35e12), "h200": (989.5e12, 4.8e12)}


@pytest.fixture(params=names("hardware"))
def profile(request):
    node = {k: v for k, v in group_file("hardware", request.param).items() if k != "about"}
    assert set(node) == {f.name for f in fields(HardwareProfile)}, "a file says everything"
    return HardwareProfile(**bind(HardwareProfile, node, "hardware"))


def test_a_profile_is_complete_and_its_peaks_are_the_published_dense_ones(profile):
    peaks = (profile.peak_flops_per_second, profile.peak_bytes_per_second)
    assert peaks == PUBLISHED.get(profile.name, (None, None))
    if profile.device is Device.cpu:
        assert profile.precision is Precision.float32
    else:
        assert profile.precision is Precision.bfloat16


@pytest.mark.parametrize("name", names("logger"))
def test_a_logger_says_mode_and_place(name):
    node = group_file("logger", name)
    of_wandb = set() if name == "tensorboard" else {"project", "entity"}
    assert node.keys() == {"name", "about", "mode"} | of_wandb
    assert node["mode"] in {"online", "offline", "disabled", "tensorboard"}


def test_the_loggers_are_named_after_what_they_do():
    modes = {name: group_file("logger", name)["mode"] for name in names("logger")}
    assert modes == {
        "none": "disabled", "tensorboard": "tensorboard", "wandb_offline": "offline",
        "wandb_online": "online",
    }  # fmt: skip
