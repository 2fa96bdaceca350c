"""Ten stores that are ordinary and awkward: what figures and tables must bear."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from lra.runners.metrics import METRICS
from lra.runners.records import Measurement, Status, digest
from tests.reports import conftest

CELL = conftest.CELL | {"device": "AMD EPYC"}
ODD = (
    "performer_%#&{}~^\\$ ᵉλ注意力機構 e\u0301e\u0308 \u05e7\u05e9\u05d1 \u0627\u0644 😀 "
    + "long_" * 14
)
FAMILIES = (
    "big_bird", "cosformer", "fnet", "h_transformer", "identity", "kernelised", "linear",
    "linformer", "local", "longformer", "luna", "nystromformer", "performer", "reformer", "sdpa",
    "sinkhorn", "skyformer", "sliding_window", "softmax", "sparse_transformer", "synthesizer",
    "tlb", "yoso",
)  # fmt: skip
GROUPS = {
    "exact attention": ["softmax", "sdpa"],
    "kernels and features": ["performer", "linear", "cosformer", "kernelised", "skyformer"],
    "windows, blocks and patterns": ["local", "longformer", "big_bird", "sliding_window",
                                     "sparse_transformer"],
    "low rank": ["linformer", "luna", "nystromformer", "synthesizer"],
}  # fmt: skip
LONG = "needs about 5.1 GiB, the limit is 4.0 GiB (hardware.memory_limit_bytes), " * 20


class Rows:
    """Rows that the store would take: every one is a `Measurement`."""

    def __init__(self, shaken: float = 0.25) -> None:
        self.rows: list[dict[str, Any]] = []
        self.shaken = shaken
        """Share of the timed cells that were disturbed."""

    def add(self, metric: str, value: float | None = None, **told: Any) -> None:
        own = {
            k: told.pop(k) for k in ("status", "reason", "samples", "step", "labels") if k in told
        }
        columns = CELL | told
        m = Measurement(metric=metric, value=value, **own)
        cell = digest([str(v) for k, v in columns.items()] + [m.labels.get("start", "")], digits=16)
        self.rows.append(
            columns
            | {"cell": cell, "metric": metric, "value": m.value, "unit": METRICS[metric].unit}
            | {"status": str(m.status), "reason": m.reason, "samples": list(m.samples)}
            | {"step": m.step, "labels": dict(m.labels)}
        )

    def frame(self) -> pd.DataFrame:
        return conftest.frame(*self.rows)

    def timed(self, model: str, length: int, seconds: float, *, samples: int = 9,
              status: Status = Status.ok, reason: str = "", **columns: Any) -> None:  # fmt: skip
        """One cell of cost, or the row that says why there is none."""
        place = {"runner": "scaling", "mode": "step", "model": model, "length": length} | columns
        if status is not Status.ok:
            self.add("time", status=status, reason=reason, **place)
            return
        draw = random.Random(length + len(model))
        shaken = {"disturbed": LONG} if draw.random() < self.shaken else {}
        taken = tuple(seconds * math.exp(draw.gauss(0, 0.1)) for _ in range(samples))
        self.add("time", sorted(taken)[len(taken) // 2], samples=taken, labels=shaken, **place)
        self.add("peak_tensor_bytes", min(2.0**45, max(1.0, seconds * 1e9)), **place)
        self.add("batch_size", 2.0, **place)
        for reference in ("sdpa", "softmax"):
            ratios = tuple(max(1e-9, t / (1e-9 * length**2 + 1e-6)) for t in taken)
            self.add(
                "time_ratio", ratios[0], samples=ratios,
                labels={"reference": reference, **shaken}, **place,
            )  # fmt: skip

    def trained(
        self, model: str, *, seeds: Iterable[int] = (0, 1), steps: int = 12, **columns: Any
    ) -> None:
        """Curves and scores."""
        for seed in seeds:
            place = {"model": model, "seed": seed} | columns
            draw = random.Random(f"{model}{seed}")
            for step in range(1, steps + 1):
                self.add("train_loss", 1.5 + math.exp(-step / 4) + 0.05 * draw.random(),
                         step=25 * step, **place)  # fmt: skip
            for split in ("validation", "test"):
                self.add("accuracy", 0.3 + 0.1 * draw.random(),
                         labels={"split": split, "examples": "2000"}, **place)  # fmt: skip
            for place_of in ("1", "2–3", "4–7", "1,024–2,047"):
                labels = {
                    "split": "test",
                    "part": place_of,
                    "regime": "non-overlapping",
                    "items": "9",
                }
                self.add("loss_by_position", 2 + draw.random(), labels=labels, **place)

    def further(self, models: Sequence[str], *, tasks: Sequence[str] = ("text8",)) -> None:
        """Extrapolation, decoding, peers, spans, approximation and recovery."""
        for model in models:
            for task in tasks:
                self._beyond(model, task)
                self._span(model, task)
            self._decode(model)
            self._peer(model)
            self._approximation(model)
            self._recovery(model)

    def _beyond(self, model: str, task: str) -> None:
        place = {"runner": "extrapolate", "mode": "extrapolate", "model": model, "task": task,
                 "length": 128}  # fmt: skip
        for factor in (0.5, 1, 2, 4, 8, 16):
            labels = {"split": "test", "factor": f"{factor:g}", "tokens": f"{128 * factor:.0f}",
                      "trained_tokens": "128"}  # fmt: skip
            if factor > 4 and len(model) % 2:
                self.add("accuracy", status=Status.unsupported, reason=LONG, labels=labels, **place)
            else:
                self.add("accuracy", 1 / (1 + factor), labels=labels, **place)

    def _span(self, model: str, task: str) -> None:
        place = {"runner": "span", "mode": "span", "model": model, "task": task}
        for measure, layer, head, value in (
            *(("attention", str(n % 4), str(n // 4), 3.0 * n) for n in range(8)),
            ("attention", "all", "all", 9.0), ("gradient", "all", "all", 0.0),
            ("occlusion", "all", "all", 64.0),
        ):  # fmt: skip
            labels = {"measure": measure, "layer": layer, "head": head, "split": "validation"}
            self.add("span", value, labels=labels, **place)

    def _decode(self, model: str) -> None:
        for mode in ("state", "recompute"):
            for length in (256, 512, 1024, 2048):
                place = {"runner": "decode", "mode": mode, "model": model, "length": length}
                if mode == "recompute" and length > 1024:
                    self.add("token_time", status=Status.skipped, reason=LONG, **place)
                    continue
                taken = tuple(1e-6 * length * (1 + 0.01 * i) for i in range(9))
                shaken = {"disturbed": LONG} if length == 512 else {}
                self.add("token_time", taken[4], samples=taken, labels=shaken, **place)
                self.add("batch_size", 1.0, **place)
                if mode == "state":
                    self.add("state_bytes", 0.0 if len(model) % 3 else 8.0 * length, **place)

    def _peer(self, model: str) -> None:
        labels = {
            "peer": f"a_package-with {model} Attention",
            "setting": "64 slots",
            "version": "1",
        }
        for length in (256, 1024):
            place = {"runner": "peers", "mode": "step", "model": model, "length": length}
            ratios = (0.5, 1.0 + length / 1024, 3.0)
            shaken = {"disturbed": LONG} if length == 1024 else {}
            self.add("peer_speedup", ratios[1], samples=ratios, labels=labels | shaken, **place)
            self.add("peer_bytes_ratio", 0.5, labels=labels, **place)

    def _approximation(self, model: str) -> None:
        for length in (256, 1024):
            place = {"runner": "approximation", "mode": "random", "model": model, "length": length}
            for budget in (16, 64, 256):
                labels = {"option": "features", "target": "softmax", "budget": str(budget)}
                shaken = {"disturbed": LONG} if budget == 64 else {}
                for metric in ("output_error", "matrix_error"):
                    self.add(metric, 1 / budget, samples=(0.5 / budget, 1.5 / budget),
                             labels=labels, **place)  # fmt: skip
                for k in ("1", "16"):
                    self.add("topk_mass_recall", 0.5, labels=labels | {"k": k}, **place)
                self.add("core_time_ratio", budget / 32, samples=(budget / 32,) * 3,
                         labels=labels | {"reference": "sdpa"} | shaken, **place)  # fmt: skip

    def _recovery(self, model: str) -> None:
        for start in ("softmax", "scratch"):
            place = {"runner": "transfer", "mode": "transfer", "model": model}
            for step in (0, 10, 20, 30):
                told = {"split": "validation", "start": start}
                self.add("loss", 2 + 5 / (1 + step), step=step, labels=told, **place)
                self.add("accuracy", 0.5 - 0.4 / (1 + step), step=step, labels=told, **place)


def ablation() -> pd.DataFrame:
    """2 x 2 options with long names."""
    rows = Rows()
    for kernel in ("softmax", "hyperbolic"):
        for draw in ("true", "false"):
            name = (
                f"performer (kernel={kernel}, orthogonal={draw}, feature_epsilon=none, norms=chi)"
            )
            for length in (256, 512, 1024, 2048):
                rows.timed(name, length, 1e-6 * length)
            rows.trained(name)
    return rows.frame()


def whole_store() -> pd.DataFrame:
    """Every family and runner, on several tasks."""
    rows = Rows()
    for i, model in enumerate(FAMILIES):
        for length in (256, 1024, 4096, 16384):
            if length > 4096 and i % 4 == 0:
                rows.timed(model, length, 1.0, status=Status.skipped, reason=f"limit {i}: {LONG}")
            else:
                rows.timed(model, length, 1e-7 * (i + 1) * length ** (1 + i / 23))
        for task in ("listops", "text"):
            rows.trained(model, task=task, seeds=(0,), steps=4)
    rows.further(FAMILIES[:13])
    return rows.frame()


def single() -> pd.DataFrame:
    """One cell, at one length."""
    rows = Rows()
    rows.timed("linear", 256, 0.01)
    return rows.frame()


def odd_name() -> pd.DataFrame:
    """A name of 120 and more characters, of every kind."""
    rows = Rows()
    for model in (ODD, ODD + "b", "softmax"):
        for length in (256, 512, 1024):
            rows.timed(model, length, 1e-6 * length)
        rows.timed(model, 2048, 1.0, status=Status.out_of_memory, reason=f"{ODD}\n{LONG}")
        rows.trained(model)
    rows.further([ODD, ODD + "b"])
    return rows.frame()


def failures() -> pd.DataFrame:
    """Nothing but failures, and then one number."""
    rows = Rows()
    for i, model in enumerate(FAMILIES[:9]):
        for length in (256, 512):
            rows.timed(model, length, 1.0, status=Status.out_of_memory, reason=f"{LONG}{i}")
        rows.add("accuracy", status=Status.crashed, reason="signal 11", model=model,
                 labels={"split": "test"})  # fmt: skip
    rows.timed("softmax", 1024, 0.01)
    return rows.frame()


def extremes() -> pd.DataFrame:
    """Twelve orders of magnitude, zeros, equal values, one sample alone."""
    rows = Rows()
    for i, model in enumerate(("softmax", "linear", "sdpa", "identity", "local")):
        for length in (64, 1000, 4097, 2**20):
            if model == "identity":
                rows.timed(model, length, 1e-11, samples=1)
            else:
                rows.timed(model, length, 10.0 ** (-9 + 3 * i), samples=1 + i)
        for step in (1, 10**6):
            rows.add("train_loss", [0.0, 1e-9, 1e3][i % 3], model=model, step=step)
    return rows.frame()


def many_models() -> pd.DataFrame:
    """Forty models on one plot."""
    rows = Rows()
    names = [
        f"own_model_{i} (mixer.features={2 ** (i % 12)}, mixer.kernel=softmax)" for i in range(40)
    ]
    for i, name in enumerate(names):
        for length in (256, 512, 1024):
            rows.timed(name, length, 1e-6 * length * (i + 1))
        rows.trained(name, seeds=(0,), steps=3)
    rows.further(names[:13])
    return rows.frame()


def many_settings() -> pd.DataFrame:
    """Twelve tasks, two modes, three precisions, three machines."""
    rows = Rows()
    for t in range(12):
        for model in ("linear", "softmax"):
            rows.trained(model, task=f"task_number_{t}", seeds=(0,), steps=3,
                         source=f"files: a-very-long-name-{t}.xz (a part), {t}")  # fmt: skip
    for device in ("AMD EPYC", "NVIDIA H200", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"):
        for precision in ("float32", "bfloat16", "float16"):
            for mode in ("step", "forward"):
                for length in (256, 1024):
                    rows.timed(
                        "linear",
                        length,
                        1e-6 * length,
                        device=device,
                        precision=precision,
                        mode=mode,
                    )
    rows.further(["linear", "softmax"], tasks=[f"task_number_{t}" for t in range(12)])
    return rows.frame()


def odd_text() -> pd.DataFrame:
    """Labels with commas and line breaks, and reasons without end."""
    rows = Rows()
    told = {"split": "test, or\nvalidation", "examples": "7", "regime": "one,\ntwo;\tthree $x^2$"}
    for model in ("linear", "softmax"):
        rows.add("accuracy", 0.5, model=model, labels=told)
        rows.add("accuracy", 0.5, model=model, labels=told | {"split": "test"})
        for step in (1, 2):
            rows.add("train_loss", 1.0, model=model, step=step, task="a, b\u2028c $d_e$")
        for length in (256, 512, 1024):
            reason = f"Traceback:\n  {'x' * 400}\n{LONG}"
            rows.timed(model, length, 1e-6 * length)
            rows.timed(
                f"{model} b", length, 0.0, status=Status.crashed, reason=reason + str(length)
            )
    return rows.frame()


def fragments() -> pd.DataFrame:
    """Curves of one point, seeds missing, mixed machines."""
    rows = Rows()
    rows.add("train_loss", 1.0, step=1)
    rows.add("train_loss", 2.0, step=1, seed=None, model="softmax")
    rows.trained("sdpa", seeds=(0, 3), steps=1, device="NVIDIA H200")
    rows.trained("sdpa", seeds=(1,), steps=1)
    rows.timed("linear", 300, 0.1)
    rows.timed("sdpa", 17, 0.1)
    return rows.frame()


STORES: dict[str, Callable[[], pd.DataFrame]] = {
    make.__name__: make
    for make in (
        ablation, whole_store, single, odd_name, failures, extremes, many_models, many_settings,
        odd_text, fragments,
    )
}  # fmt: skip
