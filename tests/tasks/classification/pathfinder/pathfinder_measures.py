"""What is measured on pictures of Pathfinder, ours and the authors' alike."""

import hashlib
import math
from itertools import pairwise, product

import numpy as np

from lra.tasks.classification.pathfinder.trace import follows


def measures(picture):
    """Return the measures of one picture; lengths in pixels, angles in degrees, levels to 255.

    Of a first dash only its beginning counts: the authors' generator forgets its direction.
    """
    pixels, long, short = picture.pixels, picture.snakes[:2], picture.snakes[2:]
    turns = [bend(*pair) for snake in long for pair in pairwise(snake[1:])]
    gaps = [math.dist(one.head, begun(two, picture)) for s in long for one, two in pairwise(s[1:])]
    crossing = [cross(*pair) for pair in product(chords(long[0]), chords(long[1]))]
    found = {
        "mean level": pixels.mean(),
        "empty pixels": np.mean(pixels == 0),
        "faint pixels": np.mean((pixels > 0) & (pixels < 64)),
        "components": components(pixels > 0),
        "bright components": components(pixels >= 64),
        "short snakes": len(short),
        "long level": level(pixels, [dash for snake in long for dash in snake[1:-1]]),
        "gap": np.mean(gaps),
        "turn": np.mean(turns),
        "sharp turns": np.mean(np.array(turns) > 45),
        "path length": np.mean([length(snake) for snake in long]),
        "end to end": np.mean([math.dist(snake[0].tail, snake[-1].head) for snake in long]),
        "disc distance": math.dist(*picture.marks),
        "crossing": any(crossing),
    }
    if short:
        found["short level"] = level(pixels, [dash for snake in short for dash in snake[1:]])
    return {name: float(value) for name, value in found.items()}


def table(pictures):
    """Return {label: {name: (mean, standard error)}}."""
    found = {}
    for label in (0, 1):
        rows = [measures(picture) for picture in pictures if picture.label == label]
        names = sorted({name for row in rows for name in row})
        found[label] = {
            name: mean_and_error([row[name] for row in rows if name in row]) for name in names
        }
    return found


def mean_and_error(values):
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def components(drawn):
    """Count groups of pixels that touch, corners included."""
    left = set(zip(*(axis.tolist() for axis in np.nonzero(drawn)), strict=True))
    number = 0
    while left:
        number += 1
        edge = [left.pop()]
        while edge:
            y, x = edge.pop()
            near = {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            edge += near
    return number


def level(pixels, dashes):
    """Return the mean level of the pixels in which dashes end."""
    return np.mean([pixels[dash.head] for dash in dashes])


def begun(dash, picture):
    """Return where a dash begins, in fractions of pixels."""
    size = picture.style.dash
    return dash.head[0] - size * math.sin(dash.turn), dash.head[1] - size * math.cos(dash.turn)


def bend(one, two):
    return abs(math.degrees(math.remainder(two.turn - one.turn, 2 * math.pi)))


def chords(snake):
    """Return the straight pieces through the ends of a snake's dashes."""
    return list(pairwise([snake[0].tail, *(dash.head for dash in snake[1:])]))


def length(snake):
    return sum(math.dist(*chord) for chord in chords(snake))


def cross(one, two):
    """Return whether two straight pieces cross or touch."""

    def side(a, b, c):
        value = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
        return (value > 0) - (value < 0)

    return side(*one, two[0]) != side(*one, two[1]) and side(*two, one[0]) != side(*two, one[1])


def digest(draw, style, number):
    """Hash the first pictures of seed 3, with their labels."""
    found = hashlib.sha256()
    for index in range(number):
        picture = draw(style, 3, index)
        found.update(picture.pixels.tobytes() + bytes([picture.label]))
    return found.hexdigest()


def readings(picture):
    """Return whether the marks are joined, for each way to follow the dashes between them.

    Nothing of which dash belongs to which snake is used but the number of dashes of a long one:
    from every dash that begins at the first mark, each possible successor is followed. Two values:
    the dashes can be read both ways.
    """
    dashes = [dash for snake in picture.snakes for dash in snake]
    begin, finish = picture.marks
    found, waiting = set(), [(dash,) for dash in dashes if dash.tail == begin]
    while waiting:
        path = waiting.pop()
        if len(path) == picture.style.contour:
            found.add(path[-1].head == finish)
            continue
        after = (d for d in dashes if d not in path and follows(picture, path[-1], d))
        waiting += [(*path, dash) for dash in after]
    return found
