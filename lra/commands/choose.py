"""`lra choose`: which families serve a length on a machine, ranked; it runs and writes nothing."""

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
Which attention, or other family, for sequences of this length on this machine: what fits, what it
costs, and what is on record of its speed and its scores. It counts on models without contents,
runs nothing and writes nothing.
"""
EXAMPLES = """\
examples:
  lra choose length=16384 hardware=a100 causal            a language model's layers on an A100
  lra choose length=4096 task=text size=small --by quality
  lra choose length=8192 hardware=laptop_gpu gib=24       a card of 24 GiB that has no profile
  lra choose length=8192 hardware=laptop_gpu width=512 heads=8 depth=6 batch=4 --by memory

All other words are those of lra run: model=linear,mamba, size=base, model.backbone.norm=rms. The
default size is size=tiny. Forecasts are those of lra plan.
"""
RANKED = {
    "forecast": "the forecast time of a training step (lra plan), the one that every family has",
    "time": "measured time over that of exact attention, each at the length of its note; those of "
    "another kind of device or direction behind",
    "memory": "forecast memory of a training step",
    "operations": "multiply-adds of a forward pass",
    "prefill": "the forecast time of a forward pass over one text",
    "token": "the forecast time of one token more, behind a text of this length",
    "state": "bytes of the state behind one text; without a state last",
    "quality": "scores of papers, then of rows: they are of different settings, see the notes",
}
UNKNOWN = "–"
LEGEND = {
    "params": "thousand numbers that training moves",
    "kMAC": "thousand multiply-adds for each token of a forward pass; of exact causal attention "
    "all pairs count, but those of blocks that forgetting leaves out on a CPU",
    "reach": "an output depends on no token further away than so many; all: there is no bound",
    "GiB": "memory of a training step at its peak; !: more than there is",
    "step": "time of a training step: forecast, or with a note as measured; OOM: out of memory",
    "prefill": "forecast time of reading one text",
    "token": "forecast time of one token more, counted as prefill; rows of runner=decode are apart",
    "state": "bytes (K, M, G: 1024-fold) of one text behind all tokens: float32, as runner=decode "
    "holds it in any precision",
    "x sdpa": "measured time of a training step over that of exact attention; in parentheses: of "
    "another kind of device or direction than asked",
    "rows": "test score of the task, of stored or published rows",
    "paper": "the same, as papers report it",
    UNKNOWN: "not known: nothing on record, or it cannot be had",
}
KERNELS = (
    "kernels: ours, plain PyTorch, with PyTorch's fused attention in sdpa and what calls it; fused "
    "kernels elsewhere (flash-linear-attention, mamba-ssm) can be several times faster"
)


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra choose`; its other words are those of `lra run`."""
    args = parser_beside_words("lra choose", USAGE, ABOUT, EXAMPLES)
    args.add_argument(
        "--by", default="forecast", metavar="KEY", help=f"{', '.join(KEYS)}; default: forecast"
    )
    args.add_argument("--json", action="store_true", help="print one JSON object")
    add_results(args, "a store, whose rows count before published ones; ")
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
        print(f"left out: {line}", file=sys.stderr)
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
        yield f"no state along time, so each new token reads all again: {', '.join(stateless)}"
    for line in serving:
        if line["reason"] and line["model"] not in stateless:
            yield f"{line['model']}: {line['reason']}"
    late = [line["model"] for line in serving if line["fits"] is False]
    if late:
        yield f"does not fit: {', '.join(late)}; a smaller batch=, or lra plan on what helps"
    refused = dict(frame[~frame["serves"]][["model", "reason"]].to_numpy().tolist())
    two_sided = [name for name in refused if f", {CAUSAL}, " in frame.attrs["setting"]
                 and name not in sets()[CAUSAL]]  # fmt: skip
    if two_sided:
        yield f"cannot serve, two-sided only: {', '.join(two_sided)}"
    for name in refused.keys() - two_sided:
        yield f"cannot serve: {name}: {refused[name]}"
