"""What steers a sweep: the options that every runner has beside its own."""

from dataclasses import dataclass, field

from lra.configuration import ConfigError
from lra.suggest import unknown
from runners.records import DISTURBED, Status

LONGEST_S = 1e9
"""A limit of thirty years is none; clocks of the system hold no more than three centuries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Options of every runner that steer a sweep and never change a result."""

    dry_run: bool = False
    """List the cells, done and to do, and stop."""
    shard: str | None = None
    """`i/n`: run every n-th cell, starting with the i-th."""
    retry: list[str] = field(default_factory=list)
    """Which complete cells are to be repeated: statuses, e.g. [timeout], and `disturbed`, those
    that the machine disturbed while they were measured."""
    timeout_s: float | None = None
    """A cell that takes longer ends as a `timeout` row."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense, each with the way out."""
        known = [*(status.name for status in Status), DISTURBED]
        for name in self.retry:
            if name not in known:
                raise ConfigError("runner.retry: " + unknown("status", name, known))
        if self.timeout_s is not None and not 0 < self.timeout_s <= LONGEST_S:
            raise ConfigError(
                f"runner.timeout_s: got {self.timeout_s}; wanted seconds above 0, at most "
                f"{LONGEST_S:.0f}, or null for no limit"
            )
        self.part()

    def part(self) -> tuple[int, int]:
        """Return shard as (i, n), 1 <= i <= n."""
        if self.shard is None:
            return 1, 1
        i, _, n = self.shard.partition("/")
        if i.isdecimal() and n.isdecimal() and len(i + n) < 20 and 1 <= int(i) <= int(n):
            return int(i), int(n)
        raise ConfigError(
            f"runner.shard: got {self.shard!r}; wanted i/n with 1 <= i <= n, as in 2/8"
        )
