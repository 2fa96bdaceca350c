"""`lra choose`: rank the families that can process a sequence length on a machine."""

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
"""The version of the JSON that `--json` prints."""
USAGE = (
    "lra choose length=N hardware=NAME [gib=N] [causal] [task=NAME] "
    "[width=N heads=N depth=N batch=N]"
)
ABOUT = """\
Find the models that suit a sequence length and a machine. For each model, you see whether it fits
into memory, its forecast time, and measured speeds and scores from stored and published rows.
This command counts operations; it starts no run.
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
    "forecast": "the time of a training step that lra plan forecasts",
    "time": "the measured time of a training step divided by the time of exact attention; the "
    "notes name the lengths; models timed only on another kind of device (CPU or GPU) or in the "
    "other direction (causal or not) come last",
    "memory": "the forecast memory of a training step",
    "operations": "the number of multiply-adds in a forward pass",
    "prefill": "the forecast time of a forward pass over one text",
    "token": "the forecast time to generate one more token after a text of this length",
    "state": "the size in bytes of the state after reading one text; models that have no state "
    "are listed last",
    "quality": "scores from papers first, then scores from rows; the notes name the settings, "
    "which differ between scores",
}
UNKNOWN = "–"
LEGEND = {
    "params": "thousands of trainable parameters",
    "kMAC": "thousands of multiply-adds per token in a forward pass; causal exact attention is "
    "counted with all pairs of tokens, but without the blocks that model=forgetting skips on a CPU",
    "reach": "the largest distance, in tokens, between an output and an input that it depends on; "
    "`all` means the whole sequence",
    "GiB": "peak memory of a training step; ! marks more memory than the machine has",
    "step": "forecast time of a training step, or its measured time if a letter in brackets names "
    "a note; OOM means out of memory",
    "prefill": "forecast time to read one text",
    "token": "forecast time to generate one more token; runner=decode measures it",
    "state": "size in bytes (K, M, G: powers of 1024) of the float32 state after reading one text",
    "x sdpa": "measured time of a training step divided by the time of exact attention (SDPA); "
    "parentheses mark a device kind or direction other than yours",
    "rows": "test score on the task, from stored or published rows",
    "paper": "test score on the task, as papers report it",
    UNKNOWN: "the value is unknown, or impossible for this model",
}
KERNELS = (
    "Forecasts and measured times are those of our PyTorch operations, and sdpa uses PyTorch's "
    "fused attention. Public kernels (lra list kernels) can be several times faster"
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `lra choose`, which leaves arguments of `lra run` unparsed."""
    args = parser_beside_words("lra choose", USAGE, ABOUT, EXAMPLES)
    args.add_argument(
        "--by", default="forecast", metavar="KEY", help=f"{', '.join(KEYS)}; default: forecast"
    )
    args.add_argument("--json", action="store_true", help="print one JSON object")
    add_results(args, "a results folder; its rows replace published rows of the same models; ")
    return args


def main(argv: list[str]) -> int:
    """Print the ranked families; return 1 if a damaged file excludes runs."""
    flags, words = parser().parse_known_args(argv)
    frame, left_out = screen(words, by=flags.by, results=flags.results)
    if flags.json:
        plain = frame.astype(object).where(frame.notna(), None)
        families = plain.to_dict("records")
        print(json.dumps({"schema": SCHEMA, **frame.attrs, "by": flags.by, "families": families}))
    else:
        _print_ranking(frame, flags.by)
    for line in left_out:
        print(f"excluded: {line}", file=sys.stderr)
    return 1 if left_out else 0


class _Notes:
    """Gives each source of a number a letter (a, b, …), in the order of first use."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}

    def marked(self, text: str, source: str) -> str:
        """Return `text` with the letter of its source, as 0.5[a]; `UNKNOWN` without a source."""
        if not source:
            return UNKNOWN
        number = len(self.letters)
        letter = ("" if number < 26 else chr(96 + number // 26)) + chr(97 + number % 26)  # z, aa
        return f"{text}[{self.letters.setdefault(source, letter)}]"


def _print_ranking(frame: "pd.DataFrame", by: str) -> None:
    """Print the table of the families that can do the task, its legend and its notes.

    Args:
        frame: What `lra.choose` returns, a line for each family.
        by: The rank that the user asked for, a key of `RANKED`.
    """
    suitable: list[dict[Any, Any]] = frame[frame["serves"]].to_dict("records")
    notes, absent = _Notes(), set[str]()
    absent |= {"rows", "paper"} if frame.attrs["no_scores"] else set()
    absent |= {"token", "state"} if frame["token_s"].isna().all() else set()
    lines = [_format_family(line, notes, length=frame["reach"].max()) for line in suitable]
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
    for sentence in _write_notes(frame, suitable, notes):
        print(sentence)


def _format_family(line: dict[str, Any], notes: _Notes, *, length: float) -> dict[str, str]:
    """Return the printed entries of one family by column.

    Args:
        line: A line of the frame that `lra.choose` returns.
        notes: Collects the sources of measured numbers.
        length: The reach of a family that reads the whole sequence, in tokens.
    """
    ratio, fits, reach = line["time_ratio"], line["fits"] is not False, line["reach"]
    ratio_text = f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
    # A paper without a number for a family says that it failed.
    paper = _format_known(line["paper_score"], lambda score: f"{score:.1f}")
    memory = _format_known(line["memory_bytes"], lambda n: f"{n / 2**30:.2f}{'' if fits else '!'}")
    return {
        "model": line["model"],
        "params": _format_known(line["parameters"], lambda n: f"{n / 1e3:,.0f}"),
        "kMAC": _format_known(line["multiply_adds"], lambda n: f"{n / 1e3:,.0f}"),
        "reach": "all" if reach == length else _format_known(reach, lambda n: f"{n:,.0f}"),
        "GiB": memory,
        "step": _format_step(line, notes),
        "prefill": _format_known(line["prefill_s"], _format_seconds),
        "token": _format_known(line["token_s"], _format_seconds),
        "state": _format_known(line["state_bytes"], _format_bytes),
        "x sdpa": notes.marked(
            ratio_text if line["time_ratio_alike"] else f"({ratio_text})",
            line["time_ratio_source"],
        ),
        "rows": notes.marked(f"{line['score']:.3g}", line["score_source"]),
        "paper": notes.marked("FAIL" if paper == UNKNOWN else paper, line["paper_score_source"]),
    }


def _format_step(line: dict[str, Any], notes: _Notes) -> str:
    """Return the time of a training step: a forecast, or a measured time with its source."""
    if not line["step_source"]:
        return _format_known(line["step_s"], _format_seconds)
    measured = "OOM" if line["fits"] is False else _format_seconds(line["step_s"])
    return notes.marked(measured, line["step_source"])


def _format_known(number: float, formatter: Callable[[float], str]) -> str:
    """Return a number as `formatter` writes it; `UNKNOWN` for nan, which stands for None."""
    return UNKNOWN if math.isnan(number) else formatter(number)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.3g}s" if seconds >= 1 else f"{seconds * 1e3:.3g}ms"


def _format_bytes(size: float) -> str:
    """Return a number of bytes with three digits and K, M or G, for powers of 1024."""
    power = min(3, int(math.log(max(size, 1), 1024)))
    return f"{size / 1024**power:.3g}{' KMG'[power].strip()}"


def _write_notes(
    frame: "pd.DataFrame", suitable: Sequence[dict[str, Any]], notes: _Notes
) -> Iterator[str]:
    """Yield a line for each source, each unknown value and each excluded family."""
    for source, letter in notes.letters.items():
        yield f"[{letter}] {source}"
    if frame.attrs["no_scores"]:
        yield frame.attrs["no_scores"]
    if frame.attrs["device"] == "cuda":
        yield KERNELS
    stateless = [line["model"] for line in suitable if line["reason"].startswith("no state")]
    if stateless:
        yield (
            "these models have no state, so each new token needs a pass over the whole text: "
            f"{', '.join(stateless)}"
        )
    for line in suitable:
        if line["reason"] and line["model"] not in stateless:
            yield f"{line['model']}: {line['reason']}"
    too_large = [line["model"] for line in suitable if line["fits"] is False]
    if too_large:
        yield (
            "these models need more memory than the machine has, so try a smaller batch=N: "
            f"{', '.join(too_large)}"
        )
    reasons = dict(frame[~frame["serves"]][["model", "reason"]].to_numpy().tolist())
    # In a causal setting, these need no separate reasons.
    bidirectional = [name for name in reasons if f", {CAUSAL}, " in frame.attrs["setting"]
                     and name not in sets()[CAUSAL]]  # fmt: skip
    if bidirectional:
        yield f"these models are excluded, as they have no causal form: {', '.join(bidirectional)}"
    for name in reasons.keys() - bidirectional:
        yield f"{name} is excluded: {reasons[name]}"
