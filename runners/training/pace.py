"""How fast a training is, and how long it will still take.

Only steps of this process count, so a resumed training has no speed before its first step. The
clock runs only during steps; the time of validations is measured separately.
"""

from collections import deque

WINDOW_S = 60.0
"""The speed is a mean over the last so many seconds."""


class Pace:
    """Speed and remaining time, from the steps since this object was created."""

    def __init__(self, step: int, steps: int, evaluate_every_steps: int) -> None:
        """Start before the first step of this process.

        Args:
            step: number of steps so far.
            steps: number of steps of the whole training.
            evaluate_every_steps: steps between validations; 0: there are none.
        """
        self.begun, self.steps, self.every = step, steps, evaluate_every_steps
        self.first_s: float | None = None  # seconds of the first step
        self.clock_s = 0.0  # seconds of all steps so far
        self.marks: deque[tuple[float, int]] = deque()  # (`clock_s`, step) after some of the steps
        self.validations, self.validating_s = 0, 0.0

    def stepped(self, step: int, seconds: float) -> None:
        """Record that step number `step` took `seconds`.

        The first step of a process is slower, so it counts only until there are others.
        """
        self.clock_s += seconds
        if self.first_s is None:
            self.first_s = seconds
        # The last mark is replaced while the one before it is newer than a hundredth of the window.
        elif len(self.marks) > 1 and self.clock_s - self.marks[-2][0] < WINDOW_S / 100:
            self.marks.pop()
        self.marks.append((self.clock_s, step))
        while len(self.marks) > 2 and self.marks[1][0] <= self.clock_s - WINDOW_S:
            self.marks.popleft()

    def validated(self, seconds: float) -> None:
        """Record that a validation took `seconds`."""
        self.validations += 1
        self.validating_s += seconds

    @property
    def step_s(self) -> float | None:
        """Return the mean seconds of a step in the last `WINDOW_S`; None before the first step."""
        if len(self.marks) < 2:
            return self.first_s
        (first_s, first_step), (last_s, last_step) = self.marks[0], self.marks[-1]
        return (last_s - first_s) / (last_step - first_step)

    def changed(self) -> None:
        """Forget the speed, because steps have another size from now on."""
        self.first_s = None
        self.marks.clear()

    def left_s(self, step: int, ahead: float | None = None) -> float | None:
        """Return the estimated seconds until the last step, validations included; None: unknown.

        Args:
            step: Number of steps so far.
            ahead: The remaining steps, in steps of the present size; None: all steps are alike.
        """
        if self.step_s is None:
            return None
        remaining_s = (self.steps - step if ahead is None else ahead) * self.step_s
        if self.every and self.validations:
            # All validations, the one at the last step included, without those that are done.
            validations = -(-self.steps // self.every) - step // self.every
            remaining_s += validations * self.validating_s / self.validations
        return remaining_s
