"""The authors' generator, measured: figures that ours has to meet.

drewlinsley/pathfinder at ab9c130 (2019), run as it stands with NumPy 2.4, OpenCV 5.0, Pillow 13.0
and the image functions that SciPy has dropped written again from its documentation; side 32 with
the parameters of the Long Range Arena's 14-dash set (padding 1, margin 1, dash 2 x 0.5, seed
distance 7, marker radius 1.5, continuity 1, 5 short snakes of 4 dashes, snake contrast 2, paddle
contrast 0.75, antialias scale 2, no single paddles), 4,800 pictures, NumPy seeds 101 to 104.
What is measured: `tests.tasks.classification.pathfinder.pathfinder_measures`. Groups of pixels
("components") touch at sides or corners; they are those above level 0, bright ones from level 64
on.
"""

PICTURES = {0: 2382, 1: 2418}
"""By label."""

AUTHORS = {
    0: {
        "bright components": (13.81906, 0.06421),
        "components": (8.43661, 0.06762),
        "crossing": (0.35306, 0.00979),
        "disc distance": (12.60133, 0.10462),
        "empty pixels": (0.6588, 0.0008),
        "end to end": (13.25829, 0.07312),
        "faint pixels": (0.21569, 0.00059),
        "gap": (1.79873, 0.00176),
        "long level": (140.69371, 0.16342),
        "mean level": (20.15527, 0.04201),
        "path length": (49.20503, 0.0227),
        "sharp turns": (0.27463, 0.00161),
        "short level": (181.07156, 0.24856),
        "short snakes": (1.14861, 0.01915),
        "turn": (32.57621, 0.08066),
    },
    1: {
        "bright components": (13.7378, 0.06362),
        "components": (8.39371, 0.06563),
        "crossing": (0.34574, 0.00967),
        "disc distance": (13.22682, 0.10715),
        "empty pixels": (0.65923, 0.00077),
        "end to end": (13.30401, 0.07262),
        "faint pixels": (0.21551, 0.00057),
        "gap": (1.79657, 0.00183),
        "long level": (140.62469, 0.16551),
        "mean level": (20.10196, 0.03938),
        "path length": (49.18264, 0.0234),
        "sharp turns": (0.27674, 0.00159),
        "short level": (180.99787, 0.25819),
        "short snakes": (1.12903, 0.01814),
        "turn": (32.62316, 0.08022),
    },
}
"""By label and measure: mean, and its standard error."""

RECORDED = {
    32: (40, "aaa65dbea458dc60b3286b7837eb28e9fb64a14b5ed8ea73a153f7290e7a5b57"),
    128: (2, "c8e7e78dc0b4cfcd8c6c1d426f0edebd43e817bef1c69eccacb21979ab2a3d10"),
    256: (3, "8d65f249f39ef88c6ac6bd68de073f4877b8cc4719c82a841963f12aa8550ac9"),
}
"""By side: how many pictures of ours of seed 3, and a hash of their pixels and labels."""
