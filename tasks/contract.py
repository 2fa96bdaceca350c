"""Checks that every task must pass, as plain functions for tests, `lra data verify` and new tasks.

Each check takes a prepared task and returns a finding; none raises for a broken promise.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from lra.tasks.task import SPLITS, TOKEN_KINDS, Batch, CertifiedTask, Task

BATCH_SIZE = 16
SEED = 7
MASKS = ("document", "prefix", "order")
"""Fields of a batch that decide which tokens attend to each other."""
SEEDS = 8
"""Seeds besides the first, of which one has to move train."""
MANY = 64
"""Batches to compare; a whole epoch would add nothing."""


class TaskFinding(NamedTuple):
    """The result of one check."""

    check: str
    passed: bool
    detail: str
    """What was found; for a failure, what is wrong."""


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
    """A task that finds text of one split in another, at any place."""

    def overlap_sentence(self) -> str:
        """Return which fraction of each split is in another; "" if there is none."""
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
    yield TaskFinding("spec", task.spec == before, "unchanged by prepare")
    for check in checks:
        yield check(task)


def fingerprint(batches: Iterable[Batch]) -> str:
    """Return a hash of everything in some batches."""
    seen = hashlib.sha256()
    for batch in batches:
        for name, part in zip(Batch._fields, batch, strict=True):
            seen.update(name.encode())
            if part is not None:
                array = part.contiguous().numpy()
                seen.update(f"{array.dtype} {array.shape}".encode())
                seen.update(array.tobytes())
    return seen.hexdigest()


def _example_count(task: Task, split: str, unknown: int) -> int:
    """Return how many examples a split has, or `unknown`."""
    if isinstance(task, CountedExamples):
        return task.examples(split)
    return task.spec.sizes.get(split, unknown)


def _batch_size(task: Task) -> int:
    """Return the size of batches of which train has four at least, where it has so many rows."""
    return max(1, min(BATCH_SIZE, _example_count(task, "train", 4 * BATCH_SIZE) // 4))


def _batches(task: Task, split: str, seed: int = SEED) -> Iterator[Batch]:
    return task.batches(split, batch_size=_batch_size(task), seed=seed)


def _every(task: Task, split: str) -> Iterator[Batch]:
    """Yield all examples of a split: in batches of such a size that train leaves none out."""
    size = _example_count(task, split, 1)
    whole = next(rows for rows in range(min(BATCH_SIZE, size), 0, -1) if size % rows == 0)
    return task.batches(split, batch_size=whole, seed=SEED)


def check_repeats(task: Task) -> TaskFinding:
    """The same arguments give the same batches."""
    differing = [
        split
        for split in SPLITS
        if fingerprint(islice(_batches(task, split), MANY))
        != fingerprint(islice(_batches(task, split), MANY))
    ]
    detail = f"differs in {', '.join(differing)}" if differing else "same arguments, same batches"
    return TaskFinding("repeats", not differing, detail)


def check_seed_matters(task: Task) -> TaskFinding:
    """Another seed changes the training order; evaluation keeps its order."""
    moved = []
    for split in SPLITS:
        first = fingerprint(islice(_batches(task, split), MANY))
        others = range(SEED + 1, SEED + 1 + SEEDS)  # few rows may come in the same order by chance
        if any(first != fingerprint(islice(_batches(task, split, s), MANY)) for s in others):
            moved.append(split)
    wanted = ["train"] if _example_count(task, "train", BATCH_SIZE) > 1 else []
    return TaskFinding("seed", moved == wanted, f"splits whose order the seed moves: {moved}")


def check_start(task: Task) -> TaskFinding:
    """Starting at batch k equals skipping k batches."""
    wrong = []
    for split in SPLITS:
        for start in (1, 3):
            skipped = islice(_batches(task, split), start, start + 4)
            begun = task.batches(split, batch_size=_batch_size(task), seed=SEED, start=start)
            if fingerprint(skipped) != fingerprint(islice(begun, 4)):
                wrong.append(f"{split} from {start}")
    detail = f"differs for {', '.join(wrong)}" if wrong else "start=k equals skipping k batches"
    return TaskFinding("start", not wrong, detail)


def _indices(batches: Iterable[Batch]) -> list[int]:
    return [index for batch in batches for index in batch.index.tolist()]


def check_ranks(task: Task) -> TaskFinding:
    """The ranks together have the batches of one rank, with each row once."""
    wrong, size = [], _example_count(task, "train", BATCH_SIZE)
    for split in SPLITS:
        for ranks in (2, 3)[: size - 1]:
            rows = min(4, size // ranks)
            shares = [
                _indices(task.batches(split, batch_size=rows, seed=SEED, rank=rank, ranks=ranks))
                for rank in range(ranks)
            ]
            together = sorted(index for share in shares for index in share)
            alone = sorted(_indices(task.batches(split, batch_size=rows * ranks, seed=SEED)))
            if together != alone or len(set(together)) != len(together):
                wrong.append(f"{split} over {ranks}")
            if split == "train" and len({len(share) for share in shares}) > 1:
                wrong.append(f"{split} over {ranks}: unequal numbers, which block training")
    detail = f"wrong for {', '.join(wrong)}" if wrong else "ranks partition every epoch"
    return TaskFinding("ranks", not wrong, detail)


def check_whole(task: Task) -> TaskFinding:
    """Evaluation splits are complete; train drops an incomplete batch and nothing else."""
    faults, rows = [], _batch_size(task)
    for split in SPLITS:
        indices = _indices(_batches(task, split))
        size = task.spec.sizes.get(split)
        if split == "train":
            if len(set(indices)) != len(indices) or len(indices) % rows:
                faults.append("train repeats examples or has an incomplete batch")
            if size is not None and len(indices) != size - size % rows:
                faults.append(f"train yields {len(indices)} of {size}")
        elif sorted(indices) != list(range(size if size is not None else len(indices))):
            faults.append(f"{split} does not yield each of {size} examples once")
    return TaskFinding("whole", not faults, "; ".join(faults) or "each example once an epoch")


def check_disjoint(task: Task) -> TaskFinding:
    """No example is in two splits, except for known copies in public data."""
    rows = {split: list(_row_hashes(_every(task, split))) for split in SPLITS}
    hash_sets = {split: set(hashes) for split, hashes in rows.items()}
    faults, seen = [], []
    for number, first in enumerate(SPLITS):
        for second in SPLITS[number + 1 :]:
            share = sum(row in hash_sets[first] for row in rows[second]) / len(rows[second])
            allowed = task.copies_allowed(first, second) if isinstance(task, Copies) else 0.0
            if share > 0:
                seen.append(f"{share:.2%} of {second} also in {first}")
            if share > allowed:
                faults.append(f"{second} shares {share:.2%} with {first}, allowed {allowed:.2%}")
    if isinstance(task, Overlaps) and (sentence := task.overlap_sentence()):
        seen.append(sentence)
    return TaskFinding(
        "disjoint", not faults, "; ".join(faults or seen) or "no example in two splits"
    )


def _row_hashes(batches: Iterable[Batch]) -> Iterator[bytes]:
    for batch in batches:
        for number, row in enumerate(batch.tokens):
            real = row if batch.keep is None else row[batch.keep[number]]
            yield hashlib.blake2b(real.contiguous().numpy().tobytes(), digest_size=16).digest()


def check_tokens(task: Task) -> TaskFinding:
    """Tokens and targets are inside the vocabulary and the classes; lengths inside the limit."""
    spec, faults = task.spec, set()
    bound = spec.vocabulary if spec.kind in TOKEN_KINDS else spec.classes
    for split in SPLITS:
        for batch in _every(task, split):
            if batch.tokens.is_floating_point() != spec.scalars:
                faults.add(f"{split}: tokens of {batch.tokens.dtype} though scalars={spec.scalars}")
            elif spec.scalars:
                if not bool(batch.tokens.isfinite().all()):
                    faults.add(f"{split}: a number that is not finite")
            elif batch.tokens.min() < 0 or batch.tokens.max() >= spec.vocabulary:
                faults.add(f"{split}: a token outside 0 … {spec.vocabulary - 1}")
            if batch.target.min() < 0 or batch.target.max() >= bound:
                faults.add(f"{split}: a target outside 0 … {bound - 1}")
            if batch.tokens.shape[-1] > spec.max_length:
                faults.add(f"{split}: longer than max_length={spec.max_length}")
    detail = "; ".join(sorted(faults)) or "tokens, targets and lengths are in range"
    return TaskFinding("tokens", not faults, detail)


def check_masks(task: Task) -> TaskFinding:
    """Batches have exactly the masks that the task names; a prefix ends inside its row."""
    faults = set()
    for split in SPLITS:
        for batch in _every(task, split):
            masks = {name for name in MASKS if getattr(batch, name) is not None}
            if masks != task.spec.masks:
                faults.add(f"{split}: {sorted(masks)}, and spec.masks={sorted(task.spec.masks)}")
            if batch.prefix is not None:
                length = batch.tokens.shape[-1]
                if bool(((batch.prefix < 0) | (batch.prefix >= length)).any()):
                    faults.add(f"{split}: a prefix outside 0 … {length - 1}")
    detail = "; ".join(sorted(faults)) or f"batches carry {sorted(task.spec.masks) or 'no masks'}"
    return TaskFinding("masks", not faults, detail)


def check_keep(task: Task) -> TaskFinding:
    """`keep` is False exactly at padding, which ends with the longest row."""
    faults = set()
    for split in SPLITS:
        for batch in _every(task, split):
            real = torch.ones_like(batch.tokens, dtype=torch.bool)
            if task.spec.padded:
                real = batch.tokens != 0
            keep = torch.ones_like(real) if batch.keep is None else batch.keep
            if batch.keep is not None and not task.spec.padded:
                faults.add(f"{split}: keep is given though spec.padded is False")
            if not torch.equal(keep, real):
                faults.add(f"{split}: keep disagrees with padding (id 0)")
            if not bool(keep.any(dim=-1).all()):
                faults.add(f"{split}: a row without tokens")
            behind = keep.int().cummin(dim=-1).values.bool()
            if torch.equal(keep, behind) and not bool(keep[..., -1].any()):
                faults.add(f"{split}: padded beyond the longest row")
    detail = "; ".join(sorted(faults)) or "keep is False exactly at padding"
    return TaskFinding("keep", not faults, detail)


def check_perfect(task: Task) -> TaskFinding:
    """A correct answer scores 1, a wrong one 0, and every outcome is reported once."""
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
                faults.append(f"{split}: {hits:g} of {count:g} when all are {right}")
            if task.spec.kind not in TOKEN_KINDS and len(set(indices)) != len(indices):
                faults.append(f"{split}: an outcome is reported twice")
    return TaskFinding("perfect", not faults, "; ".join(faults) or "a perfect answer scores 1")


def check_baselines(task: Task) -> TaskFinding:
    """Baselines have one outcome for each example, whose mean is their accuracy."""
    if not isinstance(task, CertifiedTask):
        return TaskFinding("baselines", True, "the task computes no baselines")
    faults = []
    for split in SPLITS[1:]:
        number = len(_indices(_batches(task, split)))
        for baseline in task.baselines(split):
            outcomes = baseline.outcomes
            if outcomes is None:
                if task.spec.metric not in {"accuracy", *baseline.measures}:
                    faults.append(f"{baseline.name}: no outcomes, and no {task.spec.metric}")
            elif len(outcomes) != number:
                faults.append(f"{baseline.name}: {len(outcomes)} outcomes for {number} examples")
            elif abs(float(outcomes.double().mean()) - baseline.accuracy) > 1e-9:
                faults.append(f"{baseline.name}: accuracy is not the mean of its outcomes")
            if not baseline.sentence:
                faults.append(f"{baseline.name}: no sentence explains it")
    return TaskFinding("baselines", not faults, "; ".join(faults) or "one outcome for each example")
