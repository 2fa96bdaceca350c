"""Work for the isolation tests: each function is one fault, or one honest piece of work."""

import ctypes
import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path


class Unsupported(ValueError):
    pass


class CannotEven(Unsupported):
    pass


class Diverged(ArithmeticError):
    pass


class Interrupted(Exception):
    pass


class Unreadable:
    """Pickles, and cannot be read back."""

    def __reduce__(self):
        return (int, ("not a number",))


def echo(argument, send):
    for item in argument:
        send(item)


def pid_then_wait(argument, send):
    send(os.getpid())
    time.sleep(argument)


def raise_error(argument, send):
    send("before")
    kind, message = argument
    errors = {
        "ValueError": ValueError,
        "Unsupported": Unsupported,
        "CannotEven": CannotEven,
        "Diverged": Diverged,
        "FloatingPointError": FloatingPointError,
        "MemoryError": MemoryError,
        "RuntimeError": RuntimeError,
        "SystemExit": SystemExit,
        "SystemError": SystemError,
        "KeyboardInterrupt": KeyboardInterrupt,
        "Interrupted": Interrupted,
    }
    raise errors[kind](message)


def invert_zeros(argument, send):
    import numpy as np

    np.linalg.inv(np.zeros(argument))


def kill_self(argument, send):
    send("before")
    if argument is signal.SIGHUP:  # which nohup has every child ignore
        signal.signal(argument, signal.SIG_DFL)
    os.kill(os.getpid(), argument)


def segfault(argument, send):
    send("before")
    ctypes.string_at(0)


def leave(argument, send):
    send("before")
    os._exit(argument)


def hang(argument, send):
    send("before")
    time.sleep(600)


def hang_deaf(argument, send):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send(os.getpid())
    time.sleep(600)


def take_numpy(argument, send):
    import numpy as np

    send("before")
    send(float(np.ones(argument, dtype=np.uint8).sum()))


def take_torch(argument, send):
    import torch

    send("before")
    send(float(torch.ones(argument, dtype=torch.uint8).sum()))


def threads(argument, send):
    import torch

    send((torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]))


def variable(argument, send):
    send(os.environ.get(argument))


def torch_is_loaded(argument, send):
    send("torch" in sys.modules)


def draw(argument, send):
    import torch

    if argument is not None:
        torch.manual_seed(argument)
    send(torch.rand(3).tolist())


def save_on_sigterm(argument, send):
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    send("ready")
    while not stopped:
        time.sleep(0.01)
    Path(argument).write_text("saved")
    send("saved")
    raise Interrupted("saved at step 7")


def save_and_return(argument, send):
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    send("ready")
    while not stopped:
        time.sleep(0.01)


def count_sigterm(argument, send):
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append(True))
    send("ready")
    while not seen:
        time.sleep(0.01)
    time.sleep(0.3)
    Path(argument).write_text(str(len(seen)))


def leave_orphan(argument, send):
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    send(orphan.pid)
    if argument == "die":
        os.kill(os.getpid(), signal.SIGKILL)


def leave_orphan_with_pipe(argument, send):
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    send(pid)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(argument, send):
    """Until there is a file."""
    while not Path(argument).exists():
        time.sleep(0.01)


def send_unreadable(argument, send):
    send(Unreadable())
    time.sleep(600)


def linger(argument, send):
    import threading

    threading.Thread(target=time.sleep, args=(600,)).start()
    send("done")


def go_slowly(argument, send):
    import threading

    threading.Thread(target=time.sleep, args=(argument,)).start()


def talk(argument, send):
    sys.stdout.write("on the output\n")
    sys.stderr.write("on the error output\n")
    sys.stdout.flush()
    os._exit(argument)


def talk_of_memory(argument, send):
    os.write(2, b"libgomp: Thread creation failed: Resource temporarily unavailable\n")
    os._exit(argument)


def abort(argument, send):
    os.write(2, f"{argument}\n".encode())
    os.abort()


def many(argument, send):
    for number in range(argument):
        send((number, b"x" * 1000))


def rank_sum(argument, send):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    send((os.environ["RANK"], os.environ["WORLD_SIZE"], total.item()))
    dist.destroy_process_group()


def rank_fails(argument, send):
    import torch
    import torch.distributed as dist

    send("before")
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        if argument == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise Unsupported("rank 1 cannot")
    dist.all_reduce(torch.ones(1))
    time.sleep(600)


def random_work(argument, send):
    time.sleep(random.Random(argument).random() * 0.05)
    send(argument)


def end_as(how):
    """End this process in one of the ways in which cells end."""
    if how == "raise":
        raise ValueError("the reason")
    if how == "exit":
        os._exit(3)
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(600)


def flee_as_a_program(argument, send):
    """Start a program in a session of its own, as launchers do."""
    fled = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    send(fled.pid)
    end_as(argument)


def flee_as_a_fork(argument, send):
    """Fork, and leave the group."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.write(writer, b".")
        time.sleep(600)
    os.read(reader, 1)
    send(pid)
    end_as(argument)


def flee_as_a_daemon(argument, send):
    """Fork twice, so that the parent is gone, and leave the group."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    os.wait()
    send(int(os.read(reader, 100)))
    end_as(argument)


def flee_without_a_mark(argument, send):
    """Start a program that leaves a daemon behind, with none of our variables."""
    code = (
        "import os, time\n"
        "if pid := os.fork():\n    print(pid, flush=True)\n    os._exit(0)\n"
        "os.setsid()\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], env={}, stdout=subprocess.PIPE) as program:
        send(int(program.stdout.readline()))
    end_as(argument)


def shout(argument, send):
    """Print megabytes, numbered, then end."""
    megabytes, how = argument
    for number in range(megabytes):
        line = f"{number:07}".encode() * 128 + b"\n"
        os.write(1, line * 1021)
        time.sleep(0.002)
    os.write(1, b"the last word\n")
    end_as(how)


def write_and_fail(argument, send):
    """Write to a log that may take nothing."""
    if argument == "print":
        sys.stdout.write("words")
        sys.stdout.flush()
    raise KeyError("not the storage's fault")


def die_of_a_full_disk(argument, send):
    """As a library does that knows no exceptions."""
    os.write(2, b"basic_filebuf: No space left on device\n")
    os._exit(1)


def refuse_when(argument, send):
    """Meet a full disk as soon as a file is there."""
    while not argument.exists():
        time.sleep(0.01)
    raise OSError(28, "No space left on device", str(argument))


def fail_to_save(argument, send):
    """Be asked to stop, and fail to save."""
    from lra.runners.storage.atomic import write_whole

    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    send("ready")
    while not stopped:
        time.sleep(0.01)
    write_whole(argument, b"state")


class Silent(Exception):
    """Cannot say what it is about."""

    def __str__(self):
        raise RuntimeError("no words")


class Wordless(Exception):
    """Says something that is no text."""

    def __str__(self):
        return json.loads("7")


class Leaving(Exception):
    """Ends the program when asked."""

    def __str__(self):
        raise SystemExit(0)


ODD_ERRORS = {
    "surrogate": lambda: ValueError("half \udc80 a pair"),
    "nul": lambda: ValueError("nul \0 byte"),
    "escape": lambda: ValueError("\x1b[2J\x07"),
    "lines": lambda: ValueError("first\nsecond\r\n\x85third\u2028fourth"),
    "blank": lambda: ValueError(" \n "),
    "empty": lambda: type("Unsupported", (ValueError,), {})(""),
    "blank refusal": lambda: type("Unsupported", (ValueError,), {})("\n"),
    "long": lambda: ValueError("begin" + "x" * 20_000_000 + "end"),
    "long refusal": lambda: type("Unsupported", (ValueError,), {})("y \udcff" * 1_000_000),
    "bytes": lambda: ValueError(b"\xff\x00"),
    "nothing": lambda: ValueError(None),
    "silent": Silent,
    "wordless": Wordless,
    "leaving": Leaving,
    "class": lambda: type("Odd\nName", (ValueError,), {})("text"),
    "file": lambda: compile("raise ValueError('of a file')", "odd\udc80file.py", "exec"),
}


def raise_odd(argument, send):
    """Raise an error whose text, or class, or place is odd."""
    made = ODD_ERRORS[argument]()
    if not isinstance(made, BaseException):
        exec(made)
    raise made


def garbage_thresholds(_, send):
    send(gc.get_threshold())


def imported(name, send):
    send(name in sys.modules)
