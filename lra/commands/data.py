"""`lra data`: prepare the data of a task, check them, show examples, and compute baselines."""

import argparse
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
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
"""A number of examples that is larger than any split."""
PATH_OPTIONS = ("path", "train")
"""`--from` sets the first of these options that the task has."""
PICTURE_PIXELS = 256
"""The approximate height of a written picture; it is a multiple of the height of the example."""


@runtime_checkable
class Describes(Protocol):
    """A task that can write an example as text for a person."""

    def describe(self, split: str, index: int) -> str:
        """Return the decoded example number `index` of `split`, with its label."""
        ...


@runtime_checkable
class Verifies(Protocol):
    """A task that can compare its files with known hashes."""

    def verify(self) -> Any:
        """Raise BadData if the hash of a file is wrong."""
        ...


class Lengths(NamedTuple):
    """The lengths and labels of examples of a split."""

    lengths: list[int]
    """The number of tokens of each sequence without padding, ascending."""
    labels: Counter[int]
    """The number of examples of each class; empty if every position has a separate target."""


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra data`."""
    args = Parser(
        prog="lra data",
        description="Prepare the data of a task, check the data, show examples, or compute "
        "baselines.",
        epilog="""\
examples:
  lra data prepare listops        generate, download or convert the data, if they are not ready
  lra data prepare listops source=tsv --from ./lra_release/listops-1000
  lra data show text --count 2    print two examples
  lra data verify text            compare the files with their hashes
  lra data certify text           compute the scores of baselines (no long-range model)""",
    )
    verbs = args.add_subparsers(dest="verb", required=True, metavar="{prepare,verify,show,certify}")
    summaries = {
        "prepare": "generate, download or convert the data; nothing is done if they are ready",
        "verify": "check the hashes of the files, and that batches, targets and sizes are correct; "
        "the exit code is 1 if a check fails",
        "show": "print examples with their labels, and statistics of their lengths",
        "certify": "compute and store baselines, which are scores that need no long-range model",
    }
    for verb, summary in summaries.items():
        command_parser = verbs.add_parser(
            verb, help=summary, description=f"{summary.capitalize()}."
        )
        command_parser.add_argument("task", metavar="TASK", help="a name of `lra list tasks`")
        command_parser.add_argument(
            "overrides", nargs="*", metavar="OPTION=VALUE",
            help="options of the task as in lra run, with or without the prefix `task.`; also "
            "plugins=[...]",
        )  # fmt: skip
        command_parser.add_argument(
            "--from", dest="path", metavar="PATH",
            help="use files that you already have; the same as path=PATH (for task=table, as "
            "train=PATH)",
        )  # fmt: skip
        add_plugin_words(command_parser)
        split_parser = partial(command_parser.add_argument, "--split", metavar="SPLIT")
        if verb == "certify":
            split_parser(default="test", help="split of the data; default: test")
            command_parser.add_argument(
                "--again", action="store_true",
                help="compute the baselines even if they are already stored",
            )  # fmt: skip
        if verb == "show":
            split_parser(default="train", help="split of the data; default: train")
            command_parser.add_argument(
                "--index", type=whole(-MOST, MOST), default=0,
                help="number of the first example to print, counted from 0; default: 0",
            )  # fmt: skip
            command_parser.add_argument(
                "--count", type=whole(0, MOST), default=1,
                help="number of examples to print; default: 1",
            )  # fmt: skip
            command_parser.add_argument(
                "--picture", type=path_word, metavar="FILE",
                help="write the examples as one PNG file",
            )  # fmt: skip
            command_parser.add_argument(
                "--sample", type=whole(1, MOST), default=2000,
                help="number of examples for the statistics of a generated task; default: 2000",
            )  # fmt: skip
    return args


def build(arguments: argparse.Namespace) -> "Task":
    """Return the task that the command names; its options are read as in `lra run`."""
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
    """Return the command that prepares the data of a task, for a user whose data are missing."""
    words = ["lra", "data", "prepare", arguments.task, *arguments.overrides]
    words += [] if arguments.path is None else ["--from", arguments.path]
    words += [f"--config-dir={folder}" for folder in arguments.config_dir]
    words += [f"--plugin={package}" for package in arguments.plugin]
    return shlex.join(words)


def main(argv: list[str]) -> int:
    """Execute one of prepare, verify, show and certify; return the exit code."""
    data_parser = parser()
    arguments, rest = data_parser.parse_known_args(argv)
    if unknown_flags := [word for word in rest if word.startswith("-")]:
        data_parser.error(f"unrecognized arguments: {' '.join(unknown_flags)}")
    # argparse stops collecting OPTION=VALUE at the first flag; `rest` holds those after it.
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
        raise NotPrepared(f"{error}; to prepare them: {command(arguments)}") from error


def prepare(task: "Task", arguments: argparse.Namespace) -> int:
    """Prepare the data of `task`, remove files that killed processes left, and print a summary."""
    from lra.tasks.data.leftovers import sweep
    from lra.tasks.data.sources import data_root
    from lra.tasks.data.stored_task import StoredTask
    from lra.tasks.task import remarks_of

    sweep(data_root())  # removes the files that killed processes left
    print(f"{task.spec.name}, source {_describe_source(task)}, under {data_root()}", flush=True)
    task.prepare()
    spec = task.spec
    counted = ", ".join(f"{size:,} {split}" for split, size in sizes(task).items())
    print(
        f"{spec.name} version {spec.version}, source {_describe_source(task)}, has "
        f"{counted or 'an unknown number of examples'}"
    )
    print(f"data hash {spec.data_hash}; {spec.vocabulary} token ids, {spec.classes} classes")
    if isinstance(task, StoredTask) and (shared := task.store().about.get("overlap")):
        print(f"some text occurs in two splits: {shared}")
    for remark in remarks_of(task).values():
        print(f"warning: {remark}")
    for entry in entries("task", arguments.config_dir):
        if entry.name == arguments.task and entry.source:
            print(f"please cite {entry.source}")
    return 0


def _describe_source(task: "Task") -> str:
    """Return the source of a task's data as messages show it."""
    from lra.runners.records import shown_source

    return shown_source(task.spec.source)


def sizes(task: "Task") -> Mapping[str, int]:
    """Return the number of examples by split: the published number, else counted in the files."""
    from lra.tasks.data.stored_task import StoredTask
    from lra.tasks.task import SPLITS

    if isinstance(task, StoredTask) and not task.spec.sizes:
        return {split: task.examples(split) for split in SPLITS}
    return task.spec.sizes


def verify(task: "Task") -> int:
    """Check the files of `task` and what it returns; print each finding; return 1 for a failure.

    A finding is printed at once, because training the baselines on all examples takes minutes.
    """
    from lra.tasks.contract import findings
    from lra.tasks.task import BadData

    rows: list[tuple[str, str, str]] = []

    def print_finding(mark: str, check: str, detail: str) -> None:
        rows.append((mark, check, detail))
        print(f"{mark:2}  {check:9}  {detail}", flush=True)

    if isinstance(task, Verifies):
        try:
            task.verify()
            print_finding("ok", "files", "every file has its expected hash")
        except BadData as error:
            print_finding("NO", "files", str(error))
    if all(mark == "ok" for mark, *_ in rows):
        with still_running(f"checking {task.spec.name}"):
            for finding in findings(task):
                print_finding("ok" if finding.passed else "NO", finding.check, finding.detail)
    failed = sum(mark != "ok" for mark, *_ in rows)
    print(f"{task.spec.name}: {len(rows) - failed} of {len(rows)} checks passed")
    return 1 if failed else 0


def certify(task: "Task", arguments: argparse.Namespace) -> int:
    """Print the baselines of a split; compute and store them if they are not stored yet."""
    from lra.tasks.baselines.certificate import Certifiable, certified_baselines, path_of
    from lra.tasks.task import SPLITS

    if arguments.split not in SPLITS:
        raise UnknownName(unknown("split", arguments.split, SPLITS))
    if not isinstance(task, Certifiable):
        raise ValueError(
            f"task={task.spec.name} has no baselines, because its class has no method "
            "baselines(split)"
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
        accuracy = "–" if baseline.accuracy is None else f"{baseline.accuracy:.1%}"
        rows.append((baseline.name, accuracy, *texts, baseline.sentence))
    print(
        f"{task.spec.name}, source {_describe_source(task)}, {arguments.split} split, "
        f"sequences of at most {task.spec.max_length:,} tokens"
    )
    print(table(rows, indent=""))
    print(f"certificate  {path_of(task, arguments.split)}")
    return 0


def show(task: "Task", arguments: argparse.Namespace) -> int:
    """Print examples as text, then statistics of lengths and labels over a sample of the split."""
    from lra.tasks.task import SPLITS

    if arguments.split not in SPLITS:
        raise UnknownName(unknown("split", arguments.split, SPLITS))
    size = sizes(task).get(arguments.split)
    indices = range(arguments.index, arguments.index + arguments.count)
    if not indices or indices[0] < 0 or (size is not None and indices[-1] >= size):
        raise ValueError(
            f"--index {arguments.index} --count {arguments.count} selects examples outside the "
            f"split {arguments.split}, which has {size if size is not None else 'some'} examples, "
            "counted from 0"
        )
    if arguments.picture is not None:
        draw(task, arguments.split, indices, arguments.picture)
    for index in indices:
        if isinstance(task, Describes):
            text = task.describe(arguments.split, index)
        else:
            text = raw(task, arguments.split, index)
        print(
            f"{task.spec.name} / {_describe_source(task)} / {arguments.split} / {index}\n{text}\n"
        )
    print(statistics(look(task, arguments.split, arguments.sample)))
    return 0


def draw(task: "Task", split: str, indices: range, file: Path) -> None:
    """Write the pictures of examples, enlarged and next to each other, as one PNG file."""
    import numpy as np
    from PIL import Image

    from lra.tasks.classification.gray import GrayTask

    if not isinstance(task, GrayTask):
        raise ValueError(
            f"--picture: the examples of {task.spec.name} are not pictures; remove this argument"
        )
    pictures = [task.levels(task.example(split, index)[0][0]) for index in indices]
    framed = [np.pad(picture, 1, constant_values=128) for picture in pictures]  # a grey line
    scale = max(1, round(PICTURE_PIXELS / framed[0].shape[0]))
    drawn = Image.fromarray(np.concatenate(framed, axis=1).repeat(scale, 0).repeat(scale, 1))
    drawn.save(file)


def raw(task: "Task", split: str, index: int) -> str:
    """Return the token ids and the target of one example, for a task without `describe`."""
    for batch in task.batches(split, batch_size=1, seed=0):  # larger batches may omit the last
        matches = (batch.index == index).nonzero()
        if len(matches):
            row = int(matches[0])
            ids = [sequence.tolist() for sequence in batch.tokens[row]]
            return f"token ids {ids}\ntarget {batch.target[row].tolist()}"
    raise ValueError(f"split {split} has no example {index}: give a smaller --index")


def look(task: "Task", split: str, sample: int) -> Lengths:
    """Return lengths and labels of every stored example, or of `sample` examples of other tasks."""
    import numpy as np

    from lra.tasks.classification.base import ClassificationTask
    from lra.tasks.data.stored_task import StoredTask

    labels: Counter[int] = Counter()
    if isinstance(task, StoredTask):
        # The first batches would mislead: for evaluation, the longest examples come first.
        if isinstance(task, ClassificationTask):
            labels.update(task.split(split).targets.tolist())
        return Lengths(np.sort(task.lengths(split)).tolist(), labels)
    lengths: list[int] = []
    for batch in islice(_read_batches(task, split), -(-sample // BATCH_SIZE)):  # rounded up
        examples, sequences, length = batch.tokens.shape[:3]
        if batch.keep is None:  # no padding
            lengths += [length] * (examples * sequences)
        else:
            lengths += batch.keep.sum(-1).flatten().tolist()
        if batch.target.ndim == 1:
            labels.update(batch.target.tolist())
    return Lengths(sorted(lengths), labels)


def _read_batches(task: "Task", split: str) -> "Iterator[Batch]":
    """Return the batches of a split in the order of one fixed seed."""
    return task.batches(split, batch_size=BATCH_SIZE, seed=0)


def statistics(drawn: Lengths) -> str:
    """Return text with quantiles of the lengths and with the share of each label in percent."""
    if not drawn.lengths:
        return "there are no statistics, because the split has fewer examples than one batch"
    shares = {"shortest": 0.0, "median": 0.5, "90 %": 0.9, "longest": 1.0}
    quantiles = ", ".join(f"{name} {quantile(drawn.lengths, q):,}" for name, q in shares.items())
    lines = [f"number of tokens in each of {len(drawn.lengths):,} sequences: {quantiles}"]
    total = sum(drawn.labels.values())
    if total:
        percent = (f"{label}: {drawn.labels[label] / total:.1%}" for label in sorted(drawn.labels))
        lines.append(f"share of each label among {total:,} examples: {', '.join(percent)}")
    return "\n".join(lines)


def quantile(ascending: Sequence[int], q: float) -> int:
    """Return the value of the ascending list that a share `q` of the values does not exceed."""
    return ascending[min(len(ascending) - 1, int(q * len(ascending)))]
