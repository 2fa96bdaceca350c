"""Pictures as the authors' generator draws them: its figures, and the truth of labels."""

import math
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from lra.tasks.baselines.seen_examples import Pictures
from lra.tasks.classification.pathfinder import disc_distance, ink as pathfinder_ink
from lra.tasks.classification.pathfinder.published_pictures import draw
from lra.tasks.classification.pathfinder.styles import STYLES
from lra.tasks.classification.pathfinder.task import Pathfinder
from lra.tasks.classification.pathfinder.trace import Dash, is_one_snake, straightest
from tests.tasks.classification.pathfinder.pathfinder_authors import AUTHORS, RECORDED
from tests.tasks.classification.pathfinder.pathfinder_measures import (
    digest,
    measures,
    readings,
    table,
)

PICTURES = 300
ERRORS = 4.5
"""Standard errors that a mean may lie off: once in about 2,000 sound comparisons of 64."""


@pytest.fixture(scope="module")
def pictures():
    return [draw(STYLES[32], 7, index) for index in range(PICTURES)]


def strange(found, label):
    """Return the measures that differ from the authors' by more than chance."""
    return {
        name: (found[name][0], mean)
        for name, (mean, error) in AUTHORS[label].items()
        if name in found and abs(found[name][0] - mean) > ERRORS * math.hypot(error, found[name][1])
    }


def test_every_figure_of_the_authors_is_met(pictures):
    found = table(pictures)
    for label in (0, 1):
        assert set(found[label]) == set(AUTHORS[label])
        assert strange(found[label], label) == {}


@pytest.mark.parametrize(
    ("fault", "wrong", "number"),
    [
        ("contrast", {"distractor_contrast": 1.5}, 30),
        ("distractors", {"distractors": 2}, 80),
        ("continuity", {"continuity": 1.3}, 40),
        ("seed_distance", {"seed_distance": 3}, 180),
    ],
)
def test_a_wrong_parameter_would_be_noticed(fault, wrong, number):
    """A seed distance of 5 would not be, even on 600 pictures: the next test is for that."""
    del fault
    found = table([draw(replace(STYLES[32], **wrong), 7, index) for index in range(number)])
    assert strange(found[0], 0)
    assert strange(found[1], 1)


def test_the_long_snakes_begin_the_seed_distance_apart(pictures):
    """In whole pixels: each axis is rounded, so that it is off by half a pixel at most."""

    def apart(drawn, wanted):
        found = [math.dist(p.snakes[0][0].tail, p.snakes[1][0].tail) for p in drawn]
        return all(abs(distance - wanted) <= math.sqrt(0.5) for distance in found)

    wanted = STYLES[32].seed_distance
    assert apart(pictures, wanted)
    nearer = replace(STYLES[32], seed_distance=wanted - 1)
    assert not apart([draw(nearer, 7, index) for index in range(20)], wanted)


def parts(picture):
    """Return the snakes again from all dashes without their order, each from its first dash."""
    reach = picture.style.dash + 2 * picture.margin

    def onward(dash):
        y, x = (reach * part(dash.turn) for part in (math.sin, math.cos))
        return math.ceil(dash.pivot[0] + y), math.ceil(dash.pivot[1] + x)

    every = [dash for snake in picture.snakes for dash in snake]
    return every, onward


@pytest.mark.parametrize("side", [32, 256])
def test_labels_are_true(side, pictures):
    """From the dashes alone: on from the first mark, by the rule of pivots, to the second."""
    drawn = pictures if side == 32 else [draw(STYLES[256], 0, index) for index in range(6)]
    clear = straight = 0
    for picture in drawn:
        every, onward = parts(picture)
        paths = [[dash] for dash in every if dash.tail == picture.marks[0]]
        for _ in range(picture.style.contour - 1):
            paths = [[*p, d] for p in paths for d in every if d.pivot == onward(p[-1])]
        ends = {path[-1].head == picture.marks[1] for path in paths}
        assert bool(picture.label) in ends
        assert is_one_snake(picture) == bool(picture.label)
        assert bool(picture.label) in readings(picture)
        assert picture.snakes[0][-1].head != picture.snakes[1][-1].head
        clear += readings(picture) == {bool(picture.label)}
        straight += straightest(picture) == bool(picture.label)
    assert min(clear, straight) > 0.9 * len(drawn)
    assert {picture.label for picture in drawn} == {0, 1}


def test_a_wrong_label_or_a_torn_snake_is_noticed(pictures):
    picture = next(p for p in pictures if p.label == 1)
    first, second = picture.snakes[:2]
    marked = second if first[0].tail == picture.marks[0] else first
    assert not is_one_snake(picture._replace(marks=(picture.marks[0], marked[-1].head)))
    torn = (first[:5] + first[6:], *picture.snakes[1:])
    with pytest.raises(ValueError, match="does not follow"):
        is_one_snake(picture._replace(snakes=torn))
    with pytest.raises(ValueError, match="no snake begins"):
        is_one_snake(picture._replace(marks=((0, 0), picture.marks[1])))


def test_dashes_that_share_a_pivot_can_be_read_both_ways(pictures):
    picture = next(p for p in pictures if readings(p) == {True})
    own = next(s for s in picture.snakes if s[0].tail == picture.marks[0])
    beside = own[-1]
    stray = Dash(beside.pivot, beside.tail, (beside.head[0] + 1, beside.head[1]), beside.turn)
    crossed = picture._replace(snakes=(*picture.snakes, (stray,)))
    assert readings(crossed) == {True, False}
    assert straightest(crossed)  # both turn as little: the one that lies first is taken
    straight = stray._replace(turn=own[-2].turn)
    assert beside.turn != own[-2].turn
    assert not straightest(picture._replace(snakes=(*picture.snakes, (straight,))))


@pytest.mark.parametrize("side", RECORDED)
def test_the_same_bytes_on_every_machine(side):
    number, recorded = RECORDED[side]
    assert digest(draw, STYLES[side], number) == recorded


def test_bytes_are_resampled_as_an_image_library_does():
    points = np.random.default_rng(0).integers(0, 256, (64, 64)).astype(np.uint8)
    weights = pathfinder_ink.resampling_weights(64, 32)
    expected = Image.fromarray(points).resize((32, 32), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(pathfinder_ink.resample(weights, points, weights), expected)


def test_discs_are_found_in_the_pixels():
    task = Pathfinder()
    drawn = [task.picture("train", index) for index in range(40)]
    found = disc_distance.disc_positions(np.stack([p.pixels for p in drawn]), task._disc())
    right = 0
    for picture, places in zip(drawn, found.tolist(), strict=True):
        right += {tuple(place) for place in places} == set(picture.marks)
    assert right >= 39


def test_a_baseline_that_sees_the_distance_of_the_discs_alone():
    generator = np.random.default_rng(0)
    disc = np.full((3, 3), 255, np.uint8)

    def made(number, far):
        pictures, labels = np.zeros((number, 32, 32), np.uint8), generator.integers(0, 2, number)
        for picture, label in zip(pictures, labels, strict=True):
            x = 12 if label and far else 6
            for middle in (3, 3 + x):
                picture[9:12, middle - 1 : middle + 2] = 255
        return Pictures(labels, pictures.__getitem__)

    assert disc_distance.distance_answers(made(400, True), made(100, True), disc).all()
    assert 30 < disc_distance.distance_answers(made(400, False), made(100, False), disc).sum() < 70


def test_what_is_measured():
    picture = draw(STYLES[32], 7, 0)
    found = measures(picture)
    assert found["mean level"] == picture.pixels.mean()
    assert found["short snakes"] == len(picture.snakes) - 2
