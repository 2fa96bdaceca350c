"""`lra data`: make the data of a task ready, check them, look at them."""

import argparse
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from lra.composition.arguments import Parser, add_plugin_words, path_word, whole
from lra.composition.catalogue import entries
from lra.errors import UnknownName, unknown
from lra.terminal.progress import still_running
from lra.terminal.screen import table

if TYPE_CHECKING:
    from lra.tasks.task import Batch, Task

BATCH_SIZE = 64
MOST = 2**40
"""Examples; no split has as many."""
PATH_OPTIONS = ("path", "train")
"""Options that `--from` stands for: the first that the task has."""
PICTURE_PIXELS = 256
"""Height of a picture that is written, where that is a multiple of its own."""


@runtime_checkable
class Describes(Protocol):
    """A task that shows one example the way a person reads it."""

    def describe(self, split: str, index: int) -> str:
        """Return example number `index` of `split`, decoded, with its label."""
        ...


@runtime_checkable
class Verifies(Protocol):
    """A task that compares its files with the hashes it knows."""

    def verify(self) -> Any:
        """Raise BadData where a file is not what it should be."""
        ...


class Lengths(NamedTuple):
    """What a first look at a split finds."""

    lengths: list[int]
    """Real tokens per sequence, ascending."""
    labels: Counter[int]
    """Empty where every position has its own target."""


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra data`."""
    args = Parser(
        prog="lra data",
        description="Prepare the data of a task, check them, or look at examples.",
        epilog="""\
examples:
  lra data prepare listops        generate, download or convert; does nothing if they are ready
  lra data prepare listops source=tsv --from ./lra_release/listops-1000
  lra data show text --count 2    print two examples
  lra data verify text            compare the files with their hashes
  lra data certify text           scores of baselines that need no long-range model""",
    )
    verbs = args.add_subparsers(dest="verb", required=True, metavar="{prepare,verify,show,certify}")
    summaries = {
        "prepare": "generate, download or convert the data; does nothing if they are ready",
        "verify": "check file hashes and the contract of tasks; the exit code is 1 on a failure",
        "show": "print examples with their labels, and statistics of their lengths",
        "certify": "compute and store baselines: scores that need no long-range model",
    }
    for verb, summary in summaries.items():
        one = verbs.add_parser(verb, help=summary, description=f"{summary.capitalize()}.")
        one.add_argument("task", metavar="TASK", help="a name of `lra list tasks`")
        one.add_argument(
            "overrides", nargs="*", metavar="OPTION=VALUE",
            help="options of the task as in lra run, with or without `task.`; plugins=[...]",
        )  # fmt: skip
        one.add_argument(
            "--from", dest="path", metavar="PATH",
            help="files that you have already; the same as path=PATH (for table: train=PATH)",
        )  # fmt: skip
        add_plugin_words(one)
        if verb == "certify":
            one.add_argument("--split", default="test", metavar="SPLIT", help="default: test")
            one.add_argument(
                "--again",
                action="store_true",
                help="compute baselines again that are stored already",
            )
        if verb == "show":
            one.add_argument("--split", default="train", metavar="SPLIT", help="default: train")
            one.add_argument(
                "--index", type=whole(-MOST, MOST), default=0, help="the first example; default: 0"
            )
            one.add_argument(
                "--count", type=whole(0, MOST), default=1, help="how many examples; default: 1"
            )
            one.add_argument(
                "--picture", type=path_word, metavar="FILE",
                help="write the examples as one PNG file",
            )  # fmt: skip
            one.add_argument(
                "--sample", type=whole(1, MOST), default=2000,
                help="examples for the statistics of generated tasks; default: 2000",
            )  # fmt: skip
    return args


def build(arguments: argparse.Namespace) -> "Task":
    """Build the task that the command line names, with its options read as `lra run` does."""
    from lra.composition.compose import build_task
    from lra.composition.lookup import task_node

    places = (arguments.config_dir, arguments.plugin)
    node, plugins = task_node(arguments.task, arguments.overrides, *places)
    if arguments.path is not None:
        node[next((name for name in PATH_OPTIONS if name in node), PATH_OPTIONS[0])] = (
            arguments.path
        )
    return build_task(node, plugins)


def command(arguments: argparse.Namespace) -> str:
    """Return the command that makes the data ready that another verb did not find."""
    words = ["lra", "data", "prepare", arguments.task, *arguments.overrides]
    words += [] if arguments.path is None else ["--from", arguments.path]
    words += [f"--config-dir={folder}" for folder in arguments.config_dir]
    words += [f"--plugin={package}" for package in arguments.plugin]
    return shlex.join(words)


def main(argv: list[str]) -> int:
    """Run one of prepare, verify, show and certify."""
    words = parser()
    arguments, rest = words.parse_known_args(argv)
    if strange := [word for word in rest if word.startswith("-")]:
        words.error(f"unrecognized arguments: {' '.join(strange)}")
    # argparse takes positional words in one run only: these stood behind a flag.
    arguments.overrides += rest
    task = build(arguments)
    from lra.tasks.data.full_disk import full_disk_explained
    from lra.tasks.data.sources import data_root
    from lra.tasks.task import NotPrepared

    if arguments.verb == "prepare":
        with full_disk_explained(data_root()):
            return prepare(task, arguments)

    try:
        if arguments.verb == "certify":
            return certify(task, arguments)
        return verify(task) if arguments.verb == "verify" else show(task, arguments)
    except NotPrepared as error:
        raise NotPrepared(f"{error}; here: {command(arguments)}") from error


def prepare(task: "Task", arguments: argparse.Namespace) -> int:
    """Make the data ready, sweep what killed processes left, and say what there is now."""
    from lra.tasks.data.leftovers import sweep
    from lra.tasks.data.sources import data_root
    from lra.tasks.data.stored_task import StoredTask
    from lra.tasks.task import remarks_of

    sweep(data_root())
    print(f"{task.spec.name}, source {_source(task)}, under {data_root()}", flush=True)
    task.prepare()
    spec = task.spec
    counted = ", ".join(f"{size:,} {split}" for split, size in sizes(task).items())
    print(
        f"{spec.name} version {spec.version}, source {_source(task)}: {counted or 'sizes unknown'}"
    )
    print(f"data hash {spec.data_hash}; {spec.vocabulary} token ids, {spec.classes} classes")
    if isinstance(task, StoredTask) and (shared := task.store().about.get("overlap")):
        print(f"text in two splits: {shared}")
    for remark in remarks_of(task).values():
        print(f"warning: {remark}")
    for entry in entries("task", arguments.config_dir):
        if entry.name == arguments.task and entry.source:
            print(f"please cite {entry.source}")
    return 0


def _source(task: "Task") -> str:
    from lra.runners.records import shown_source

    return shown_source(task.spec.source)


def sizes(task: "Task") -> Mapping[str, int]:
    """Return the number of examples by split: as known beforehand, or counted when prepared."""
    from lra.tasks.data.stored_task import StoredTask
    from lra.tasks.task import SPLITS

    if isinstance(task, StoredTask) and not task.spec.sizes:
        return {split: task.examples(split) for split in SPLITS}
    return task.spec.sizes


def verify(task: "Task") -> int:
    """Print the findings of the hash checks and of the contract; 1 where one failed.

    Each as it is found: a training of baselines on all examples takes minutes.
    """
    from lra.tasks.contract import findings
    from lra.tasks.task import BadData

    rows: list[tuple[str, str, str]] = []

    def found(mark: str, check: str, detail: str) -> None:
        rows.append((mark, check, detail))
        print(f"{mark:2}  {check:9}  {detail}", flush=True)

    if isinstance(task, Verifies):
        try:
            task.verify()
            found("ok", "files", "every file has the hash that it should have")
        except BadData as error:
            found("NO", "files", str(error))
    if all(mark == "ok" for mark, *_ in rows):
        with still_running(f"checking {task.spec.name}"):
            for finding in findings(task):
                found("ok" if finding.passed else "NO", finding.check, finding.detail)
    failed = sum(mark != "ok" for mark, *_ in rows)
    print(f"{task.spec.name}: {len(rows) - failed} of {len(rows)} checks passed")
    return 1 if failed else 0


def certify(task: "Task", arguments: argparse.Namespace) -> int:
    """Print the baselines of a split, computed where no certificate is there."""
    from lra.tasks.baselines.certificate import Certifiable, certified_baselines, path_of
    from lra.tasks.task import SPLITS

    if arguments.split not in SPLITS:
        raise UnknownName(unknown("split", arguments.split, SPLITS))
    if not isinstance(task, Certifiable):
        raise ValueError(
            f"{task.spec.name} computes no baselines: it has no method baselines(split)"
        )
    task.prepare()
    with still_running(f"computing baselines of {task.spec.name}"):
        baselines = certified_baselines(task, arguments.split, again=arguments.again)
    measures = list(dict.fromkeys(name for baseline in baselines for name in baseline.measures))
    rows = [
        (
            "baseline",
            "accuracy",
            *(m.replace("_", " ") for m in measures),
            "how the baseline gets this score",
        )
    ]
    for baseline in baselines:
        texts = (f"{baseline.measures[m]:.4g}" if m in baseline.measures else "" for m in measures)
        rows.append((baseline.name, f"{baseline.accuracy:.1%}", *texts, baseline.sentence))
    cut = f"at most {task.spec.max_length:,} tokens of a sequence"
    print(f"{task.spec.name}, source {_source(task)}, {arguments.split} split, {cut}")
    print(table(rows, indent=""))
    print(f"certificate  {path_of(task, arguments.split)}")
    return 0


def show(task: "Task", arguments: argparse.Namespace) -> int:
    """Print examples as a person reads them, then lengths and labels over a sample."""
    from lra.tasks.task import SPLITS

    if arguments.split not in SPLITS:
        raise UnknownName(unknown("split", arguments.split, SPLITS))
    size = sizes(task).get(arguments.split)
    indices = range(arguments.index, arguments.index + arguments.count)
    if not indices or indices[0] < 0 or (size is not None and indices[-1] >= size):
        raise ValueError(
            f"--index {arguments.index} --count {arguments.count} lies outside the split "
            f"{arguments.split}, which has {size if size is not None else 'some'} examples from 0"
        )
    if arguments.picture is not None:
        draw(task, arguments.split, indices, arguments.picture)
    for index in indices:
        if isinstance(task, Describes):
            text = task.describe(arguments.split, index)
        else:
            text = raw(task, arguments.split, index)
        print(f"{task.spec.name} / {_source(task)} / {arguments.split} / {index}\n{text}\n")
    print(statistics(look(task, arguments.split, arguments.sample)))
    return 0


def draw(task: "Task", split: str, indices: range, file: Path) -> None:
    """Write examples that are pictures side by side, as they are, as one PNG file."""
    import numpy as np
    from PIL import Image

    from lra.tasks.classification.gray import GrayTask

    if not isinstance(task, GrayTask):
        raise ValueError(f"--picture: {task.spec.name} has no pictures: remove this argument")
    pictures = [task.levels(task.example(split, index)[0][0]) for index in indices]
    framed = [np.pad(picture, 1, constant_values=128) for picture in pictures]
    scale = max(1, round(PICTURE_PIXELS / framed[0].shape[0]))
    drawn = Image.fromarray(np.concatenate(framed, axis=1).repeat(scale, 0).repeat(scale, 1))
    drawn.save(file)


def raw(task: "Task", split: str, index: int) -> str:
    """Return the token ids of one example, for tasks that cannot spell them out."""
    for batch in task.batches(split, batch_size=1, seed=0):  # more would leave the last out
        matches = (batch.index == index).nonzero()
        if len(matches):
            row = int(matches[0])
            ids = [sequence.tolist() for sequence in batch.tokens[row]]
            return f"token ids {ids}\ntarget {batch.target[row].tolist()}"
    raise ValueError(f"split {split} has no example {index}: give a smaller --index")


def look(task: "Task", split: str, sample: int) -> Lengths:
    """Return every stored example, or walk over the first batches until `sample` are seen."""
    import numpy as np

    from lra.tasks.classification.base import ClassificationTask
    from lra.tasks.data.stored_task import StoredTask

    labels: Counter[int] = Counter()
    if isinstance(task, StoredTask):
        # Not the first batches: those of evaluation are the longest examples.
        if isinstance(task, ClassificationTask):
            labels.update(task.split(split).targets.tolist())
        return Lengths(np.sort(task.lengths(split)).tolist(), labels)
    lengths: list[int] = []
    for batch in islice(_batches(task, split), -(-sample // BATCH_SIZE)):
        if batch.keep is None:
            lengths += [batch.tokens.shape[-1]] * (batch.tokens.shape[0] * batch.tokens.shape[1])
        else:
            lengths += batch.keep.sum(-1).flatten().tolist()
        if batch.target.ndim == 1:
            labels.update(batch.target.tolist())
    return Lengths(sorted(lengths), labels)


def _batches(task: "Task", split: str) -> "Iterator[Batch]":
    return task.batches(split, batch_size=BATCH_SIZE, seed=0)


def statistics(drawn: Lengths) -> str:
    """Return the quantiles of the lengths and the share of every label."""
    if not drawn.lengths:
        return "no statistics: the split has fewer examples than one batch"
    at = {"shortest": 0.0, "median": 0.5, "90 %": 0.9, "longest": 1.0}
    quantiles = ", ".join(f"{name} {quantile(drawn.lengths, q):,}" for name, q in at.items())
    lines = [f"tokens per sequence over {len(drawn.lengths):,} sequences: {quantiles}"]
    total = sum(drawn.labels.values())
    if total:
        shares = (f"{label}: {drawn.labels[label] / total:.1%}" for label in sorted(drawn.labels))
        lines.append(f"labels over {total:,} examples: {', '.join(shares)}")
    return "\n".join(lines)


def quantile(ascending: Sequence[int], q: float) -> int:
    """Return the element below or at which a share `q` of the values lies."""
    return ascending[min(len(ascending) - 1, int(q * len(ascending)))]
