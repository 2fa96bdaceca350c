"""Checks that every task must pass, as plain functions for tests, `lra data verify` and new tasks.

Each check takes a prepared task and returns a `TaskFinding`. A check that fails raises no error.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from lra.tasks.task import SPLITS, TOKEN_KINDS, Batch, CertifiedTask, Kind, Task

BATCH_SIZE = 16
SEED = 7
MASKS = ("document", "prefix", "order")
"""Fields of a batch that decide which tokens attend to each other."""
SEEDS = 8
"""Further seeds that are tried; at least one of them must change the order of train."""
MANY = 64
"""Most batches that are compared."""


class TaskFinding(NamedTuple):
    """The result of one check."""

    check: str
    passed: bool
    detail: str
    """What the check found; for a failure, what is wrong."""


@runtime_checkable
class Copies(Protocol):
    """A task whose public data repeat some examples across splits."""

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the fraction of `second` that may be in `first` as well."""
        ...


@runtime_checkable
class CountedExamples(Protocol):
    """A task that counts its prepared examples."""

    def examples(self, split: str) -> int:
        """Return the number of examples in a split."""
        ...


@runtime_checkable
class Overlaps(Protocol):
    """A task that finds text of one split anywhere in the text of another split."""

    def overlap_sentence(self) -> str:
        """Return a sentence with the fraction of each split that is in another; "" for none."""
        ...


@runtime_checkable
class Incomplete(Protocol):
    """A task whose training epochs may drop several incomplete batches."""

    def incomplete(self, batch_size: int) -> int:
        """Return the number of training examples in incomplete batches."""
        ...


def check_task(task: Task) -> list[TaskFinding]:
    """Prepare `task` and run every check on it."""
    return [*findings(task)]


def findings(task: Task) -> Iterator[TaskFinding]:
    """Prepare `task`, and yield the finding of each check as soon as it is known."""
    before = task.spec
    task.prepare()
    checks: tuple[Callable[[Task], TaskFinding], ...] = (
        check_repeats,
        check_seed_matters,
        check_start,
        check_ranks,
        check_whole,
        check_disjoint,
        check_tokens,
        check_keep,
        check_masks,
        check_perfect,
        check_baselines,
    )
    unchanged = task.spec == before
    detail = "prepare() leaves task.spec unchanged" if unchanged else "prepare() changes task.spec"
    yield TaskFinding("spec", unchanged, detail)
    for check in checks:
        yield check(task)


def fingerprint(batches: Iterable[Batch]) -> str:
    """Return a hash of all tensors in `batches`: names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for batch in batches:
        for name, part in zip(Batch._fields, batch, strict=True):
            digest.update(name.encode())
            if part is not None:
                array = part.contiguous().numpy()
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(array.tobytes())
    return digest.hexdigest()


def _example_count(task: Task, split: str, unknown: int) -> int:
    """Return the number of examples of a split, or `unknown` if the task does not state it."""
    if isinstance(task, CountedExamples):
        return task.examples(split)
    return task.spec.sizes.get(split, unknown)


def _batch_size(task: Task) -> int:
    """Return a batch size of at most `BATCH_SIZE` that gives train four batches, or 1 row each."""
    return max(1, min(BATCH_SIZE, _example_count(task, "train", 4 * BATCH_SIZE) // 4))


def _batches(task: Task, split: str, seed: int = SEED) -> Iterator[Batch]:
    return task.batches(split, batch_size=_batch_size(task), seed=seed)


def _dropped(task: Task, size: int, rows: int) -> int:
    """Return how many of `size` training examples are in incomplete batches of `rows`."""
    return task.incomplete(rows) if isinstance(task, Incomplete) else size % rows


def _every(task: Task, split: str) -> Iterator[Batch]:
    """Yield all examples of a split.

    Train drops incomplete batches, so the batch size is one that leaves none of them.
    """
    size = _example_count(task, split, 1)
    sizes = range(min(BATCH_SIZE, size), 0, -1)
    divisor = next(rows for rows in sizes if _dropped(task, size, rows) == 0)
    return task.batches(split, batch_size=divisor, seed=SEED)


def check_repeats(task: Task) -> TaskFinding:
    """Check that the same arguments give the same batches."""
    differing = [
        split
        for split in SPLITS
        if fingerprint(islice(_batches(task, split), MANY))
        != fingerprint(islice(_batches(task, split), MANY))
    ]
    detail = "two calls with the same arguments give the same batches"
    if differing:
        names = ", ".join(differing)
        detail = f"two calls with the same arguments give different batches of {names}"
    return TaskFinding("repeats", not differing, detail)


def check_seed_matters(task: Task) -> TaskFinding:
    """Check that another seed changes the order of train, and of no other split."""
    moved = []
    for split in SPLITS:
        first = fingerprint(islice(_batches(task, split), MANY))
        others = range(SEED + 1, SEED + 1 + SEEDS)  # few rows may come in the same order by chance
        if any(first != fingerprint(islice(_batches(task, split, s), MANY)) for s in others):
            moved.append(split)
    wanted = ["train"] if _example_count(task, "train", BATCH_SIZE) > 1 else []
    changed = " and ".join(moved) or "no split"
    return TaskFinding("seed", moved == wanted, f"another seed changes the order of {changed}")


def check_start(task: Task) -> TaskFinding:
    """Check that an epoch from batch `start=k` on equals a whole epoch without k batches."""
    wrong = []
    for split in SPLITS:
        for start in (1, 3):
            skipped = islice(_batches(task, split), start, start + 4)
            started = task.batches(split, batch_size=_batch_size(task), seed=SEED, start=start)
            if fingerprint(skipped) != fingerprint(islice(started, 4)):
                wrong.append(f"{split} from {start}")
    detail = "an epoch with start=k equals an epoch without its first k batches"
    if wrong:
        detail = f"an epoch with start=k gives wrong batches: {', '.join(wrong)}"
    return TaskFinding("start", not wrong, detail)


def _indices(batches: Iterable[Batch]) -> list[int]:
    """Return the numbers of the examples in `batches`, in order."""
    return [index for batch in batches for index in batch.index.tolist()]


def check_ranks(task: Task) -> TaskFinding:
    """Check that several ranks together read each example that one rank reads, exactly once."""
    wrong, size = [], _example_count(task, "train", BATCH_SIZE)
    for split in SPLITS:
        for ranks in (2, 3)[: size - 1]:  # no more ranks than examples
            rows = min(4, size // ranks)
            shares = [
                _indices(task.batches(split, batch_size=rows, seed=SEED, rank=rank, ranks=ranks))
                for rank in range(ranks)
            ]
            together = sorted(index for share in shares for index in share)
            alone = sorted(_indices(task.batches(split, batch_size=rows * ranks, seed=SEED)))
            if together != alone or len(set(together)) != len(together):
                wrong.append(f"{ranks} ranks do not read each example of {split} once")
            if split == "train" and len({len(share) for share in shares}) > 1:
                wrong.append(f"{ranks} ranks read different numbers of examples: training blocks")
    detail = "; ".join(wrong) or "the ranks together read each example once"
    return TaskFinding("ranks", not wrong, detail)


def check_whole(task: Task) -> TaskFinding:
    """Check that evaluation reads every example, and train all but incomplete batches."""
    faults, rows = [], _batch_size(task)
    for split in SPLITS:
        indices = _indices(_batches(task, split))
        size = task.spec.sizes.get(split)
        if split == "train":
            if len(set(indices)) != len(indices) or len(indices) % rows:
                faults.append("train repeats examples or has an incomplete batch")
            if size is not None and len(indices) != size - _dropped(task, size, rows):
                faults.append(f"an epoch of train yields {len(indices)} of {size} examples")
        elif sorted(indices) != list(range(size if size is not None else len(indices))):
            faults.append(f"{split} does not yield each of its {size} examples once")
    detail = "; ".join(faults) or "an epoch yields each example once"
    return TaskFinding("whole", not faults, detail)


def check_disjoint(task: Task) -> TaskFinding:
    """Check that no example is in two splits, except for known copies in public data."""
    rows = {split: list(_row_hashes(_every(task, split))) for split in SPLITS}
    hash_sets = {split: set(hashes) for split, hashes in rows.items()}
    faults, copies = [], []
    for number, first in enumerate(SPLITS):
        for second in SPLITS[number + 1 :]:
            share = sum(row in hash_sets[first] for row in rows[second]) / len(rows[second])
            allowed = task.copies_allowed(first, second) if isinstance(task, Copies) else 0.0
            if share > 0:
                copies.append(f"{share:.2%} of the {second} examples are in {first} as well")
            if share > allowed:
                faults.append(f"{copies[-1]}; the task allows {allowed:.2%}")
    if isinstance(task, Overlaps) and (sentence := task.overlap_sentence()):
        copies.append(sentence)
    detail = "; ".join(faults or copies) or "no example is in two splits"
    return TaskFinding("disjoint", not faults, detail)


def _row_hashes(batches: Iterable[Batch]) -> Iterator[bytes]:
    """Yield a hash of the tokens of each example, without padding."""
    for batch in batches:
        for number, row in enumerate(batch.tokens):
            real = row if batch.keep is None else row[batch.keep[number]]
            yield hashlib.blake2b(real.contiguous().numpy().tobytes(), digest_size=16).digest()


def check_tokens(task: Task) -> TaskFinding:
    """Check that tokens, targets and lengths are within the limits of `task.spec`."""
    spec, faults = task.spec, set()
    bound = spec.vocabulary if spec.kind in TOKEN_KINDS else spec.classes
    for split in SPLITS:
        for batch in _every(task, split):
            if batch.tokens.is_floating_point() != spec.scalars:
                faults.add(
                    f"{split}: the type of the tokens is {batch.tokens.dtype}, which contradicts "
                    f"spec.scalars={spec.scalars}"
                )
            elif spec.scalars:
                if not bool(batch.tokens.isfinite().all()):
                    faults.add(f"{split}: a token is infinite or NaN")
            elif batch.tokens.min() < 0 or batch.tokens.max() >= spec.vocabulary:
                faults.add(f"{split}: a token id is below 0 or above {spec.vocabulary - 1}")
            if spec.kind is Kind.regression:
                if not bool(batch.target.isfinite().all()):
                    faults.add(f"{split}: a target is infinite or NaN")
            elif batch.target.min() < 0 or batch.target.max() >= bound:
                faults.add(f"{split}: a target is below 0 or above {bound - 1}")
            if batch.tokens.shape[2] > spec.max_length:
                faults.add(f"{split}: a row is longer than spec.max_length={spec.max_length}")
            if batch.tokens.shape[3:] != (spec.channels,)[: int(spec.channels > 1)]:
                faults.add(
                    f"{split}: tokens have the shape {[*batch.tokens.shape]}, which contradicts "
                    f"spec.channels={spec.channels}"
                )
    detail = "; ".join(sorted(faults)) or "tokens, targets and lengths are within their limits"
    return TaskFinding("tokens", not faults, detail)


def check_masks(task: Task) -> TaskFinding:
    """Check that batches have exactly the masks of `spec.masks`, and prefixes end in their rows."""
    faults = set()
    for split in SPLITS:
        for batch in _every(task, split):
            masks = {name for name in MASKS if getattr(batch, name) is not None}
            if masks != task.spec.masks:
                faults.add(
                    f"{split}: a batch has the masks {sorted(masks)}, but "
                    f"spec.masks={sorted(task.spec.masks)}"
                )
            condition = batch.condition
            if (condition is None) == bool(task.spec.conditions) or (
                condition is not None and bool((condition >= task.spec.conditions).any())
            ):
                faults.add(f"{split}: conditions are not those of spec.conditions")
            if batch.prefix is not None:
                length = batch.tokens.shape[2]
                if bool(((batch.prefix < 0) | (batch.prefix >= length)).any()):
                    faults.add(f"{split}: the length of a prefix is outside 0 to {length - 1}")
    names = ", ".join(sorted(task.spec.masks))
    detail = "; ".join(sorted(faults)) or f"batches have {names or 'no'} masks, as spec.masks says"
    return TaskFinding("masks", not faults, detail)


def check_keep(task: Task) -> TaskFinding:
    """Check that `keep` is False exactly at padding, and that the longest row has no padding."""
    faults = set()
    for split in SPLITS:
        for batch in _every(task, split):
            real = torch.ones_like(batch.tokens, dtype=torch.bool)
            if task.spec.padded:
                real = batch.tokens != 0
            keep = torch.ones_like(real) if batch.keep is None else batch.keep
            if batch.keep is not None and not task.spec.padded:
                faults.add(f"{split}: batches have batch.keep, although spec.padded is False")
            if not torch.equal(keep, real):
                faults.add(f"{split}: batch.keep is not False exactly at padding (id 0)")
            if not bool(keep.any(dim=-1).all()):
                faults.add(f"{split}: a row has no tokens")
            starts = keep.int().cummin(dim=-1).values.bool()  # True up to the first padding
            padded_at_end = torch.equal(keep, starts)
            if padded_at_end and not bool(keep[..., -1].any()):
                faults.add(f"{split}: rows are padded beyond the longest row")
    detail = "; ".join(sorted(faults)) or "batch.keep is False exactly at padding"
    return TaskFinding("keep", not faults, detail)


def check_perfect(task: Task) -> TaskFinding:
    """Check that only correct answers score 1, only wrong ones 0, and each outcome occurs once."""
    faults = []
    for split in SPLITS[1:]:
        for right in (True, False):
            hits = count = 0.0
            indices: list[int] = []
            for batch in _batches(task, split):
                nll = torch.zeros(batch.target.shape)
                outcome = task.tally(nll, torch.full(batch.target.shape, right), batch)
                hits, count = hits + outcome.hits, count + outcome.count
                indices += outcome.index.tolist()
            if count == 0 or hits != count * right:
                answers = "correct" if right else "wrong"
                faults.append(
                    f"{split}: if all answers are {answers}, {hits:g} of {count:g} count as correct"
                )
            if task.spec.kind not in TOKEN_KINDS and len(set(indices)) != len(indices):
                faults.append(f"{split}: the outcome of an example is reported twice")
    detail = "; ".join(faults) or "correct answers score 1, wrong answers 0"
    return TaskFinding("perfect", not faults, detail)


def check_baselines(task: Task) -> TaskFinding:
    """Check that a baseline has one outcome for each example, and their mean as its accuracy."""
    if not isinstance(task, CertifiedTask):
        return TaskFinding("baselines", True, "the task computes no baselines")
    faults = []
    for split in SPLITS[1:]:
        number = len(_indices(_batches(task, split)))
        for baseline in task.baselines(split):
            outcomes = baseline.outcomes
            if outcomes is None:
                if task.spec.metric not in {"accuracy", *baseline.measures}:
                    faults.append(f"{baseline.name}: neither outcomes nor {task.spec.metric}")
            elif len(outcomes) != number:
                faults.append(f"{baseline.name}: {number} examples have {len(outcomes)} outcomes")
            elif abs(float(outcomes.double().mean()) - (baseline.accuracy or 0.0)) > 1e-9:
                faults.append(f"{baseline.name}: the accuracy is not the mean of the outcomes")
            if not baseline.sentence:
                faults.append(f"{baseline.name}: the baseline has no sentence that explains it")
    detail = "; ".join(faults) or "each baseline has one outcome for each example"
    return TaskFinding("baselines", not faults, detail)
