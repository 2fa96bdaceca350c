import numpy as np
import pytest
import torch

from lra.tasks.baselines.image_windows import WINDOW, WindowNetwork, window_answers
from lra.tasks.baselines.seen_examples import Pictures
from lra.tasks.classification.pixels import Dataset, Pixels, PixelSource


def noise(number, seed):
    return np.random.default_rng(seed).integers(0, 60, (number, 16, 16)).astype(np.uint8)


def score(made):
    def read(seed):
        pictures, labels = made(seed)
        return Pictures(labels, lambda places: pictures[places])

    return float(window_answers(read(0), read(1), classes=2).mean())


def test_an_answer_is_a_mean_over_windows():
    torch.manual_seed(0)
    model = WindowNetwork(3).eval()
    picture = torch.randn(1, 32, 32, requires_grad=True)
    *layers, pool, flat, linear = model
    before = picture
    for layer in layers:
        before = layer(before)
    before[0, :, 8, 8].sum().backward()
    seen = picture.grad[0].nonzero()
    assert (seen.amax(0) - seen.amin(0) + 1).tolist() == [WINDOW, WINDOW]
    assert torch.equal(model(picture), linear(flat(pool(before))))


def test_a_local_pattern_is_found_wherever_it_lies():
    def made(seed):
        pictures, labels = noise(700, seed), np.arange(700) % 2
        for place in np.flatnonzero(labels):
            y, x = place % 10, place * 7 % 10
            pictures[place, y : y + 5, x : x + 5] = 250
        return pictures, labels

    assert score(made) > 0.9


def test_what_two_far_places_say_together_is_not_seen():
    def made(seed):
        pictures, labels = noise(700, seed), np.arange(700) % 2
        first = np.random.default_rng(seed).integers(0, 2, 700)
        pictures[:, 4, 4], pictures[:, 13, 13] = 200 * first, 200 * (first ^ labels)
        return pictures, labels

    assert score(made) < 0.6


@pytest.mark.parametrize(
    ("options", "there"),
    [({}, True), ({"permuted": True}, False), ({"max_length": 500}, False)],
)
def test_only_whole_pictures_have_windows(options, there, monkeypatch):
    monkeypatch.setattr("lra.tasks.classification.base.LOCAL", ())
    task = Pixels(source=PixelSource.sample, dataset=Dataset.mnist, **options)
    task.prepare()
    assert ("windows" in {baseline.name for baseline in task.baselines("test")}) == there
