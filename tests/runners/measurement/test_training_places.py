"""Which GPUs and cores the cells of a profile get, on machines that are not here."""

from dataclasses import replace

import pytest

from lra.conf import processors
from lra.runners.isolation.places import DevicePlace, seats
from lra.runners.measurement import gpus as module, training_places
from lra.runners.measurement.gpus import Gpu, gpus, name_devices
from lra.runners.measurement.hardware import Device, HardwareProfile
from lra.runners.measurement.training_places import on_cores, on_gpus, places_of, shared_places

CPU = HardwareProfile(name="cpu")
CUDA = HardwareProfile(name="h100", device=Device.cuda)
TWO = [("H100", "aa"), ("H100", "bb")]


@pytest.fixture(autouse=True)
def no_quota(monkeypatch, tmp_path):
    monkeypatch.setattr(processors, "ROOT", tmp_path)


@pytest.mark.parametrize(
    ("seen", "visible", "pins"),
    [
        (TWO, None, ["0", "1"]),
        (TWO, "3, GPU-bb", ["3", "GPU-bb"]),
        (TWO, "5,6,99,7", ["5", "6"]),  # CUDA stops at the first that does not exist
        ([("H100 MIG", "cc")], "MIG-1,MIG-2,MIG-1", ["MIG-1", "MIG-2"]),  # a process sees one
        ([], "", []),
        ([], "NoDevFiles", []),  # what SLURM says to a job without GPUs
        ([], "MIG-1", []),
    ],
)
def test_what_each_gpu_is_called_within_an_outer_choice(seen, visible, pins):
    assert [gpu.visible for gpu in name_devices(seen, visible)] == pins


def test_gpus_are_counted_by_a_child_in_the_caller_s_environment(monkeypatch, tmp_path):
    module._find_gpus.cache_clear()
    monkeypatch.setattr(module, "_DRIVERS", ("null",))  # there is one on every system
    monkeypatch.setattr(module, "_look", _two_cards)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,4")
    assert gpus() == (Gpu("6", "card", "of 6,4"), Gpu("4", "card", "of 6,4"))
    monkeypatch.setattr(module, "_look", _broken)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    with pytest.raises(
        ValueError, match=r"could not count the GPUs .*the driver is broken.*lra doctor"
    ):
        gpus()
    module._find_gpus.cache_clear()


def _two_cards(_, send):
    import os

    send([("card", f"of {os.environ['CUDA_VISIBLE_DEVICES']}")] * 2)


def _broken(_, send):
    raise RuntimeError("the driver is broken")


def test_places_on_gpus():
    cards = [Gpu("0", "H100", "a"), Gpu("1", "A100", "b"), Gpu("2", "H100", "c")]
    assert [place.gpu for place in on_gpus(cards)] == ["0", "2"]  # rows name one kind
    assert [place.gpu for place in on_gpus(cards, places=3)] == ["0", "2", "0"]
    assert [place.identity for place in on_gpus(cards, places=1)] == ["a"]


def test_places_on_cores_are_disjoint_or_nobody_is_kept():
    cores = [8, 0, 9, 1, 4]
    assert on_cores(cores, 2) == [DevicePlace(cores=(8, 0)), DevicePlace(cores=(9, 1))]
    assert on_cores(cores, 1, places=5)[4] == DevicePlace(cores=(4,))
    assert on_cores(cores, 1, places=2) == list(seats(2))  # another program may have the rest
    assert on_cores(cores, 1, places=6) == list(seats(6))
    assert on_cores(cores, 8) == list(seats(1))


def test_more_devices_than_there_are_is_an_error_that_says_the_way_out(monkeypatch):
    monkeypatch.setattr(training_places, "gpus", lambda: name_devices(TWO, None))
    monkeypatch.setattr(training_places, "usable_cores", lambda: [0, 1, 2])
    assert places_of(CUDA, timed=False, processes=2).most == 2
    with pytest.raises(ValueError, match=r"hardware.processes: got 4; wanted at most 2, .* 2 GPUs"):
        places_of(CUDA, timed=False, processes=4)
    with pytest.raises(
        ValueError, match=r"hardware.processes: got 2; wanted at most 1, .* 3 cores and .*=2"
    ):
        places_of(replace(CPU, training_threads=2), timed=False, processes=2)
    shared = places_of(replace(CPU, training_processes=1), timed=False, processes=4)
    assert shared.all == seats(4)
    # A card is one device, however many cells share it.
    with pytest.raises(ValueError, match=r"got 3; .* 2 GPUs"):
        places_of(replace(CUDA, training_processes=2), timed=False, processes=3)
    timed = places_of(CUDA, timed=True)
    assert timed.alone
    assert [place.gpu for place in timed.all] == ["0", "1"]


def test_what_leaves_cores_to_others_keeps_nobody_anywhere(monkeypatch):
    monkeypatch.setattr(training_places, "usable_cores", lambda: [0, 1, 2, 3])
    assert [place.cores for place in places_of(CPU, timed=False, cells=4).all] == [
        (0,), (1,), (2,), (3,),
    ]  # fmt: skip
    assert places_of(CPU, timed=False, cells=3).all == seats(4)
    assert places_of(CPU, timed=False, processes=2, cells=2).all[0].cores == (0,)


def test_workers_of_one_machine_have_gpus_of_their_own(monkeypatch):
    cards = [("H100", str(number)) for number in range(6)]
    monkeypatch.setattr(training_places, "gpus", lambda: name_devices(cards, None))

    def pins(number, workers, processes, cells=1):
        shared = shared_places(
            CUDA, timed=False, processes=processes, cells=cells, share=(number, workers)
        )
        return [place.gpu for place in shared.all]

    assert [pins(n, 6, 1) for n in range(6)] == [[str(n)] for n in range(6)]
    assert [pins(n, 3, 2) for n in range(3)] == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert pins(0, 1, 1, None) == ["0", "1", "2", "3", "4", "5"]
    assert [pins(n, 8, 1) for n in (6, 7)] == [["0"], ["1"]]  # more workers than cards
    monkeypatch.setattr(training_places, "usable_cores", lambda: [0, 1, 2, 3])
    shared = shared_places(CPU, timed=False, processes=1, cells=1, share=(2, 4))
    assert shared.all == seats(1)
