"""Parallel work with results in order, so that the number of processes cannot change the data."""

import multiprocessing
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from threading import Thread
from typing import TypeVar

from lra.conf.processors import processors
from lra.tasks.data.caller import caller_left_out
from lra.tasks.data.signals import left_to_parent

T = TypeVar("T")
R = TypeVar("R")


def in_order(
    function: Callable[[T], R], jobs: Iterator[T], processes: int
) -> Generator[R, None, None]:
    """Yield `function(job)` for each job, in order, computed by `processes` (0: one per core)."""
    workers = processes or processors()
    if workers == 1 or multiprocessing.current_process().daemon:
        # Python forbids children of a daemonic process.
        yield from map(function, jobs)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    try:
        waiting: list[Future[R]] = []
        for job in jobs:
            with caller_left_out(function), left_to_parent():  # a worker may start with a job
                waiting.append(pool.submit(function, job))
            if len(waiting) > 2 * workers:  # so that few results wait in memory
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this worker process when its parent ends, even if the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()
