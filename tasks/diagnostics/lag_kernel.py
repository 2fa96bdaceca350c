"""A weighted sum of past numbers, with one of four kernels (after OpenReview nYW2i3PRf5).

    numbers      .3 -1.2   .5   .9  -.4      the last number has lag 0
    weights     .00  .01  .04  .20  .98      near; answer: .98 * -.4 + .20 * .9 + .04 * .5 - …

    near   exp(-8 i / lags)                  the answer depends on the last numbers
    far    exp(-8 (lags - 1 - i) / lags)     on numbers about `lags` tokens before
    heavy  1 / (i + 1)                       on the last numbers, and slightly on all
    comb   1 at every eighth part of lags    on single numbers at equal distances

is the weight at lag i, below `lags`, before the weights are divided by the root of the sum of their
squares. Numbers are independent, with mean 0 and variance 1, so the error of always answering 0 is
1 with each kernel, and that of the best single lag j is 1 - w_j^2. The task shows which distances a
model can weigh; it needs no recall by content. The forms of the kernels are ours.
"""

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar

import numpy as np
from jaxtyping import Float32, Float64, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.draws import unit
from lra.tasks.diagnostics.number_rows import NumberRows, error_of
from lra.tasks.task import Baseline

TEETH = 8  # of a comb; also the rate of exponential kernels


class LagWeights(StrEnum):
    """The weights of past numbers."""

    near = auto()
    far = auto()
    heavy = auto()
    comb = auto()


class NumberDraw(StrEnum):
    """The distribution of the numbers of a row."""

    uniform = auto()
    normal = auto()


@by_name
@dataclass(kw_only=True, eq=False)
class LagKernel(NumberRows):
    """Answer a weighted sum of the last numbers of a row."""

    name: ClassVar[str] = "lag_kernel"

    length: int = 128
    kernel: LagWeights = LagWeights.near
    """Weights of the lags: near, far, heavy or comb."""
    lags: int = 64
    """Number of the last numbers of a row on which the answer may depend."""
    numbers: NumberDraw = NumberDraw.uniform
    """Distribution of the numbers: uniform or normal."""

    def __post_init__(self) -> None:
        """Check the options."""
        if self.lags < 1:
            raise ValueError(f"task.lags must be at least 1: got {self.lags}")
        self.numbers_of(
            1,
            least=self.lags,
            because=f"the kernel has task.lags={self.lags}",
            options={"kernel": self.kernel, "lags": self.lags, "numbers": self.numbers},
            difficulty=f"{self.kernel} kernel of {self.lags} lags, {self.numbers} numbers",
        )
        self.weights = weights_of(self.kernel, self.lags)

    def words(self, length: int) -> int:
        """Return the number of random words for a row: two for each number."""
        return 2 * length

    def drawn(
        self, words: UInt64[np.ndarray, "n w"], length: int
    ) -> tuple[Float32[np.ndarray, "n l 1"], Float32[np.ndarray, " n"]]:
        """Return the rows that these random words decide, and their answers."""
        first, second = unit(words[:, :length]), unit(words[:, length:])
        numbers = (first - 0.5) * 12**0.5
        if self.numbers is NumberDraw.normal:  # Box and Muller 1958
            numbers = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
        tokens = numbers.astype(np.float32)
        answers = (tokens[:, ::-1][:, : self.lags] * self.weights).sum(1)
        return tokens[..., None], answers.astype(np.float32)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the errors of the mean, and of the lag with the largest weight."""
        answers, lag = self.split(split).targets, int(self.weights.argmax())
        best = self.weights[lag] * self.rows(split)[:, -1 - lag, 0]
        mean = "This baseline always answers 0, the mean. A model with this error learnt nothing."
        one = f"This baseline weighs the number at lag {lag}. A model with this error reads one."
        return [error_of("always_zero", answers, mean), error_of("best_lag", answers - best, one)]

    def describe(self, split: str, index: int) -> str:
        """Return the numbers of a row, and its answer."""
        numbers = " ".join(f"{number:.3f}" for number in self.rows(split)[index, :, 0])
        return f"{numbers}\n-> {self.split(split).targets[index]:.3f}"


def weights_of(kernel: LagWeights, lags: int) -> Float64[np.ndarray, " i"]:
    """Return the weight of each lag; the sum of their squares is 1."""
    lag = np.arange(lags)
    weights = {
        LagWeights.near: np.exp(-TEETH * lag / lags),
        LagWeights.far: np.exp(-TEETH * (lags - 1 - lag) / lags),
        LagWeights.heavy: 1 / (lag + 1),
        LagWeights.comb: (lag % -(-lags // TEETH) == 0).astype(np.float64),
    }[kernel]
    scaled: Float64[np.ndarray, " i"] = weights / np.linalg.norm(weights)
    return scaled
