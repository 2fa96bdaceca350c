"""`lra choose`: the families that serve a length on a machine, ranked."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lra.api.choosing import KEYS, screen
from lra.composition.arguments import add_results, parser_beside_words
from lra.composition.selection import CAUSAL, sets
from lra.terminal.console import print_table
from lra.terminal.screen import flush_right

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
"""Of what `--json` prints."""
USAGE = (
    "lra choose length=N hardware=NAME [gib=N] [causal] [task=NAME] "
    "[width=N heads=N depth=N batch=N]"
)
ABOUT = """\
Find the models that suit a sequence length and a machine: whether each fits into memory, its time,
and the speed and the scores that were measured before. It counts operations and starts no run.
"""
EXAMPLES = """\
examples:
  lra choose length=16384 hardware=a100 causal              a language model on an A100
  lra choose length=4096 task=text size=small --by quality  best scores first
  lra choose length=8192 hardware=laptop_gpu gib=24         a GPU with 24 GiB
  lra choose length=8192 hardware=laptop_gpu width=512 heads=8 depth=6 batch=4 --by memory

Other arguments of `lra run` work too: model=linear,mamba, size=base, model.backbone.norm=rms. The
default is size=tiny. The forecasts are those of `lra plan`.
"""
RANKED = {
    "forecast": "the forecast time of a training step, as lra plan counts it",
    "time": "measured time compared with exact attention (lengths are in the notes); times of "
    "another kind of device or direction come last",
    "memory": "the forecast memory of a training step",
    "operations": "the multiply-adds of a forward pass",
    "prefill": "the forecast time of a forward pass over one text",
    "token": "the forecast time to generate one more token after a text of this length",
    "state": "the bytes of the state after reading one text; models without a state come last",
    "quality": "scores from papers, then scores from rows; their settings differ, see the notes",
}
UNKNOWN = "–"
LEGEND = {
    "params": "thousands of trainable parameters",
    "kMAC": "thousands of multiply-adds per token of a forward pass; exact causal attention counts "
    "all pairs, except blocks that the forgetting family skips on a CPU",
    "reach": "number of tokens: how far back or ahead an output can depend on; all: the whole "
    "sequence",
    "GiB": "peak memory of a training step; !: more than the machine has",
    "step": "time of a training step: a forecast, or measured where a note follows; OOM: out of "
    "memory",
    "prefill": "forecast time to read one text",
    "token": "forecast time of one more token; runner=decode measures it",
    "state": "bytes (K, M, G: powers of 1024) of the state after one text, in float32",
    "x sdpa": "measured time of a training step divided by that of exact attention (SDPA); in "
    "parentheses: of another kind of device or direction",
    "rows": "test score on the task, from stored or published rows",
    "paper": "test score on the task, as papers report it",
    UNKNOWN: "unknown, or impossible for this model",
}
KERNELS = (
    "kernels: all models use standard PyTorch operations, and sdpa its fused attention; special "
    "kernels (flash-linear-attention, mamba-ssm) can be several times faster"
)


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra choose`; its other words are those of `lra run`."""
    args = parser_beside_words("lra choose", USAGE, ABOUT, EXAMPLES)
    args.add_argument(
        "--by", default="forecast", metavar="KEY", help=f"{', '.join(KEYS)}; default: forecast"
    )
    args.add_argument("--json", action="store_true", help="print one JSON object")
    add_results(args, "a results folder, whose rows are preferred to published ones; ")
    return args


def main(argv: list[str]) -> int:
    """Print the screen of the words after `lra choose`."""
    flags, words = parser().parse_known_args(argv)
    frame, left_out = screen(words, by=flags.by, results=flags.results)
    if flags.json:
        plain = frame.astype(object).where(frame.notna(), None)
        families = plain.to_dict("records")
        print(json.dumps({"schema": SCHEMA, **frame.attrs, "by": flags.by, "families": families}))
    else:
        _print(frame, flags.by)
    for line in left_out:
        print(f"excluded: {line}", file=sys.stderr)
    return 1 if left_out else 0


class _Notes:
    """Sources, each with a letter where it is first named."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}

    def marked(self, text: str, source: str) -> str:
        """Return a number with the letter of its source; without a source it is not known."""
        if not source:
            return UNKNOWN
        number = len(self.letters)
        letter = ("" if number < 26 else chr(96 + number // 26)) + chr(97 + number % 26)
        return f"{text}[{self.letters.setdefault(source, letter)}]"


def _print(frame: "pd.DataFrame", by: str) -> None:
    serving: list[dict[Any, Any]] = frame[frame["serves"]].to_dict("records")
    notes, absent = _Notes(), set[str]()
    absent |= {"rows", "paper"} if frame.attrs["no_scores"] else set()
    absent |= {"token", "state"} if frame["token_s"].isna().all() else set()
    lines = [_entries(line, notes, length=frame["reach"].max()) for line in serving]
    head = [name for name in ("model", *LEGEND) if name not in {*absent, UNKNOWN}]
    print(frame.attrs["setting"])
    print(f"ranked by {RANKED[by]}")
    print(f"other ranks: --by {'|'.join(key for key in KEYS if key != by)}\n")
    rows = [head, *([line[name] for name in head] for line in lines)]
    print_table(flush_right(rows), indent="", header=True)
    print()
    for name, meaning in LEGEND.items():
        if name not in absent:
            print(f"{name:<7} {meaning}")
    for sentence in _sentences(frame, serving, notes):
        print(sentence)


def _entries(line: dict[str, Any], notes: _Notes, *, length: float) -> dict[str, str]:
    ratio, fits, reach = line["time_ratio"], line["fits"] is not False, line["reach"]
    times = f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
    paper = _known(line["paper_score"], lambda score: f"{score:.1f}")
    return {
        "model": line["model"],
        "params": _known(line["parameters"], lambda n: f"{n / 1e3:,.0f}"),
        "kMAC": _known(line["multiply_adds"], lambda n: f"{n / 1e3:,.0f}"),
        "reach": "all" if reach == length else _known(reach, lambda n: f"{n:,.0f}"),
        "GiB": _known(line["memory_bytes"], lambda n: f"{n / 2**30:.2f}{'' if fits else '!'}"),
        "step": _step(line, notes),
        "prefill": _known(line["prefill_s"], _time),
        "token": _known(line["token_s"], _time),
        "state": _known(line["state_bytes"], _bytes),
        "x sdpa": notes.marked(
            times if line["time_ratio_alike"] else f"({times})", line["time_ratio_source"]
        ),
        "rows": notes.marked(f"{line['score']:.3g}", line["score_source"]),
        "paper": notes.marked("FAIL" if paper == UNKNOWN else paper, line["paper_score_source"]),
    }


def _step(line: dict[str, Any], notes: _Notes) -> str:
    if not line["step_source"]:
        return _known(line["step_s"], _time)
    return notes.marked("OOM" if line["fits"] is False else _time(line["step_s"]),
                        line["step_source"])  # fmt: skip


def _known(number: float, text: Callable[[float], str]) -> str:
    return UNKNOWN if math.isnan(number) else text(number)


def _time(seconds: float) -> str:
    return f"{seconds:.3g}s" if seconds >= 1 else f"{seconds * 1e3:.3g}ms"


def _bytes(size: float) -> str:
    power = min(3, int(math.log(max(size, 1), 1024)))
    return f"{size / 1024**power:.3g}{' KMG'[power].strip()}"


def _sentences(
    frame: "pd.DataFrame", serving: Sequence[dict[str, Any]], notes: _Notes
) -> Iterator[str]:
    """Yield the sources, what is not known, and who cannot serve."""
    for source, letter in notes.letters.items():
        yield f"[{letter}] {source}"
    if frame.attrs["no_scores"]:
        yield frame.attrs["no_scores"]
    if frame.attrs["device"] == "cuda":
        yield KERNELS
    stateless = [line["model"] for line in serving if line["reason"].startswith("no state")]
    if stateless:
        yield (
            "these models have no state, so each new token needs a pass over the whole text: "
            f"{', '.join(stateless)}"
        )
    for line in serving:
        if line["reason"] and line["model"] not in stateless:
            yield f"{line['model']}: {line['reason']}"
    late = [line["model"] for line in serving if line["fits"] is False]
    if late:
        yield (
            f"these need more memory than the machine has: {', '.join(late)}; try a smaller batch=N"
        )
    refused = dict(frame[~frame["serves"]][["model", "reason"]].to_numpy().tolist())
    two_sided = [name for name in refused if f", {CAUSAL}, " in frame.attrs["setting"]
                 and name not in sets()[CAUSAL]]  # fmt: skip
    if two_sided:
        yield f"excluded, as they are bidirectional only: {', '.join(two_sided)}"
    for name in refused.keys() - two_sided:
        yield f"excluded: {name}: {refused[name]}"
