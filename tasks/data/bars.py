"""Bars of progress: tqdm, with a lock of threads alone.

Its own lock is a semaphore between processes as well, which a process that is killed leaves behind,
with a warning; ours draw one bar each.
"""

import threading

from tqdm import tqdm

__all__ = ["tqdm"]

tqdm.set_lock(threading.RLock())
