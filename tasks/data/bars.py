"""Progress bars: tqdm, with a lock between threads only.

By default, tqdm uses a semaphore between processes, and a killed process leaves it behind with a
warning. Processes of lra do not share bars, so they need no such semaphore.
"""

import threading

from tqdm import tqdm

__all__ = ["tqdm"]

tqdm.set_lock(threading.RLock())
