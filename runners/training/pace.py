"""How fast a training goes, and when it will have taken its steps.

Only the steps of this process count: a training that goes on at 90 % has no speed yet. Time is that
of the trainer's clock, which runs during steps alone; what validation costs is measured when it
first happens.
"""

from collections import deque

WINDOW_S = 60.0
"""Of steps: what is older says nothing of the speed now."""


class Pace:
    """Speed and time left, from the steps since this object was created."""

    def __init__(self, step: int, steps: int, evaluate_every_steps: int) -> None:
        """Begin before the first step of this process.

        Args:
            step: steps that were taken before.
            steps: of the whole training.
            evaluate_every_steps: between validations; 0 = none.
        """
        self.begun, self.steps, self.every = step, steps, evaluate_every_steps
        self.first_s: float | None = None
        self.clock_s = 0.0
        self.marks: deque[tuple[float, int]] = deque()
        self.validations, self.validating_s = 0, 0.0

    def stepped(self, step: int, seconds: float) -> None:
        """Note that step number `step` took `seconds`.

        The first one of a process, which pays for compilation and empty caches, counts only as
        long as there is no other.
        """
        self.clock_s += seconds
        if self.first_s is None:
            self.first_s = seconds
        # A mark for each part of the window is as good as one for each step.
        elif len(self.marks) > 1 and self.clock_s - self.marks[-2][0] < WINDOW_S / 100:
            self.marks.pop()
        self.marks.append((self.clock_s, step))
        while len(self.marks) > 2 and self.marks[1][0] <= self.clock_s - WINDOW_S:
            self.marks.popleft()

    def validated(self, seconds: float) -> None:
        """Note that a validation took `seconds`."""
        self.validations += 1
        self.validating_s += seconds

    @property
    def step_s(self) -> float | None:
        """Seconds of a step of late; None before the first."""
        if len(self.marks) < 2:
            return self.first_s
        (begin, first), (end, last) = self.marks[0], self.marks[-1]
        return (end - begin) / (last - first)

    def changed(self) -> None:
        """Note that steps are others from now on."""
        self.first_s = None
        self.marks.clear()

    def left_s(self, step: int, ahead: float | None = None) -> float | None:
        """Return the seconds until every step is taken, validation in between included.

        Args:
            step: The last one taken.
            ahead: Those that are left, counted as steps like the last; None: all are alike.
        """
        if self.step_s is None:
            return None
        left = (self.steps - step if ahead is None else ahead) * self.step_s
        if self.every and self.validations:
            ahead = -(-self.steps // self.every) - step // self.every
            left += ahead * self.validating_s / self.validations
        return left
