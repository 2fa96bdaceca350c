"""`lra generate`: text that a trained language model writes after a prompt."""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO, runtime_checkable

import numpy as np

from lra.composition.arguments import Parser, add_plugin, add_results, path_word, whole
from lra.composition.run import Run
from lra.errors import CommandError
from lra.terminal.screen import encodable

if TYPE_CHECKING:
    from jaxtyping import Integer

    from lra.models.backbone.generation import TokenSampling
    from lra.models.backbone.model import Backbone
    from lra.models.backbone.writing import Opening

MOST = 2**40
UNFINISHED = 3
"""Tokens that may be the beginning of one character, which has at most four bytes."""
REPLACED = "\N{REPLACEMENT CHARACTER}"


@runtime_checkable
class Spells(Protocol):
    """A task whose tokens are a text."""

    def encode(self, text: str) -> "Integer[np.ndarray, ' n']":
        """Return the ids of a text. Raises ValueError for what the vocabulary does not have."""
        ...

    def decode(self, ids: "Integer[np.ndarray, ' n']") -> str:
        """Return the text of some ids."""
        ...


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra generate`."""
    args = Parser(
        prog="lra generate",
        description="Continue a prompt with a model that you have trained on a language task. The "
        "text goes to stdout; facts about the model and its speed go to stderr.",
        epilog="""\
examples:
  lra generate 3fa9 --prompt 'the origin of'
  lra generate 3fa9 --prompt-file story.txt --tokens 500 --temperature 0.8 --top-p 0.9
  echo 'once upon a time' | lra generate 3fa9 --greedy""",
    )
    args.add_argument("cell", metavar="RUN", help="the beginning of a run's key, or its folder")
    args.add_argument("--prompt", metavar="TEXT", help="the text to continue")
    args.add_argument(
        "--prompt-file", type=path_word, metavar="FILE",
        help="read the prompt from a file, without its last line end; default: from stdin",
    )  # fmt: skip
    args.add_argument(
        "--tokens", type=whole(1, MOST), default=200, metavar="N",
        help="tokens to write; default: 200",
    )  # fmt: skip
    args.add_argument(
        "--samples", type=whole(1, MOST), default=1, metavar="N", help="number of texts; default: 1"
    )
    args.add_argument("--greedy", action="store_true", help="take the most likely token each time")
    args.add_argument(
        "--temperature", type=float, default=1.0, metavar="T",
        help="divide the logits by T before drawing; default: 1",
    )  # fmt: skip
    args.add_argument(
        "--top-k", type=whole(1, MOST), metavar="K", help="draw among the K most likely tokens"
    )
    args.add_argument(
        "--top-p", type=float, metavar="P",
        help="draw among the most likely tokens whose probabilities sum to P",
    )  # fmt: skip
    args.add_argument(
        "--seed", type=whole(0, 2**63 - 1), default=0,
        help="seed of the draws; equal logits give equal text on every machine; default: 0",
    )  # fmt: skip
    add_results(args)
    add_plugin(args, "your package, if the run uses it")
    return args


def main(argv: list[str]) -> int:
    """Write the texts."""
    arguments = parser().parse_args(argv)
    sampling = sampling_of(arguments)
    text = prompt_of(arguments)

    from lra.sweep.stored_weights import completed_training

    training = completed_training(arguments.cell, arguments.results, "RUN")
    run = training.run()
    task = speller(run, training.key)
    ids = prompt_ids(task, text)
    model = trained_model(run, training.checkpoints)
    if sampling.top_k is not None and sampling.top_k > model.facts.vocabulary:
        raise CommandError(
            f"--top-k {sampling.top_k}: the vocabulary has {model.facts.vocabulary:,} tokens; "
            "choose fewer, or remove this argument to draw among all"
        )
    import torch

    from lra.models.backbone.seeding import derive
    from lra.models.backbone.writing import open_text

    begun = time.perf_counter()
    opening = open_text(model, torch.from_numpy(ids.astype(np.int64)), arguments.tokens)
    prefill_s = time.perf_counter() - begun
    print(headline(run, training.key, opening), file=sys.stderr)
    begun = time.perf_counter()
    for number in range(arguments.samples):
        if arguments.samples > 1:
            print(f"sample {number + 1} of {arguments.samples}", file=sys.stderr, flush=True)
        generator = torch.Generator().manual_seed(derive(arguments.seed, f"sample {number}"))
        tokens = opening.tokens(sampling, arguments.tokens, generator)
        write_text(text, sys.stdout)
        for piece in pieces(task, ids, tokens):
            write_text(piece, sys.stdout)
        print(flush=True)
    seconds = time.perf_counter() - begun
    written = arguments.samples * arguments.tokens
    print(
        f"{written:,} tokens in {seconds:.2f} s, {written / seconds:,.0f} tokens/s; the prompt of "
        f"{len(ids):,} tokens took {prefill_s:.2f} s",
        file=sys.stderr,
    )
    return 0


def sampling_of(arguments: argparse.Namespace) -> "TokenSampling":
    """Return how tokens are chosen. Raises CommandError for what is no distribution."""
    from lra.models.backbone.generation import GREEDY, TokenSampling

    if arguments.greedy:
        for flag, value, usual in (
            ("--temperature", arguments.temperature, 1.0),
            ("--top-k", arguments.top_k, None),
            ("--top-p", arguments.top_p, None),
            ("--seed", arguments.seed, 0),
            ("--samples", arguments.samples, 1),
        ):
            if value != usual:
                raise CommandError(
                    f"--greedy takes the most likely token each time, so {flag} {value} has no "
                    "effect: remove one of them"
                )
        return GREEDY
    if not 0 < arguments.temperature < math.inf:
        raise CommandError(
            f"--temperature must be positive and finite: got {arguments.temperature}; --greedy "
            "takes the most likely token each time"
        )
    if arguments.top_p is not None and not 0 < arguments.top_p <= 1:
        raise CommandError(f"--top-p must lie in (0, 1]: got {arguments.top_p}")
    return TokenSampling(
        temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p
    )


def prompt_of(arguments: argparse.Namespace) -> str:
    """Return the prompt. Raises CommandError where there is none, or it is no text."""
    if arguments.prompt is not None and arguments.prompt_file is not None:
        raise CommandError("got --prompt and --prompt-file: give one of them")
    if arguments.prompt is not None:
        text, where = str(arguments.prompt), "--prompt"
    elif arguments.prompt_file is not None:
        content, where = arguments.prompt_file.read_bytes(), str(arguments.prompt_file)
        text = content.decode(errors="surrogateescape").removesuffix("\n")
    elif sys.stdin.isatty():
        raise CommandError(
            "there is no prompt: give --prompt TEXT, --prompt-file FILE, or a text on stdin"
        )
    else:
        text, where = sys.stdin.read().removesuffix("\n"), "stdin"
    if not text:
        raise CommandError(f"the prompt from {where} is empty: give one character at least")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CommandError(
            f"the prompt from {where} is no UTF-8 at character {error.start + 1}: save the text as "
            "UTF-8"
        ) from error
    return text


def speller(run: Run, key: str) -> Spells:
    """Return the task of a language model, ready to read and to write text.

    Raises:
        CommandError: The cell's model answers something else, or its tokens are no text.
    """
    from lra.composition.compose import facts
    from lra.models.backbone.config import Head

    head = facts(run).head
    if head != Head.language_modelling:
        raise CommandError(
            f"run {key} has no causal language model: task={run.task_name} asks its model for "
            f"{head.value.replace('_', ' ')}. Choose a training on a task such as text8, enwik8, "
            "pg19 or wikitext103"
        )
    if not isinstance(run.task, Spells):
        raise CommandError(
            f"run {key} was trained on {run.task_name}, whose tokens are not text. Choose a "
            "training on a task such as text8, enwik8, pg19 or wikitext103"
        )
    if run.task.spec.tokenizer:
        run.task.prepare()
    return run.task


def prompt_ids(task: Spells, text: str) -> "Integer[np.ndarray, ' n']":
    """Return the ids of the prompt."""
    try:
        ids = task.encode(text)
    except ValueError as error:
        raise CommandError(f"the prompt: {error}") from error
    if not len(ids):
        raise CommandError(f"the prompt {text!r} has no token: give one word at least")
    return ids


def trained_model(run: Run, checkpoints: str) -> "Backbone":
    """Return the model with its weights."""
    from lra.composition.compose import build_model
    from lra.runners.training.checkpoint import Checkpoints

    model = build_model(run)
    model.load_state_dict(Checkpoints(Path(checkpoints)).weights())
    return model.eval()


def headline(run: Run, key: str, opening: "Opening") -> str:
    """Return what writes: model, task, steps, and how it remembers."""
    window = f"{opening.model.facts.max_length:,} tokens"
    if opening.memory.tokens is None:
        way = f"by whole passes over the last {window}"
    elif opening.memory.endless:
        way = "through its state"
    else:
        way = f"through its state up to {window}, then by whole passes over the last {window}"
    task = f"{run.task_name} ({run.task.spec.source})"
    return f"run {key}: {run.model} on {task}, {run.optim.steps:,} steps; writes {way}"


def pieces(
    task: Spells, prompt: "Integer[np.ndarray, ' n']", tokens: Iterator[int]
) -> Iterator[str]:
    """Yield the text of tokens as it becomes certain: no character is cut in two.

    What joins a token to the one before it, such as a blank between words, belongs to it.
    """
    before, pending = [int(prompt[-1])], list[int]()
    for token in tokens:
        pending.append(token)
        settled = task.decode(np.array(before))
        settled = "" if settled.endswith(REPLACED) else settled
        text = task.decode(np.array([*(before if settled else ()), *pending]))[len(settled) :]
        if text.endswith(REPLACED) and len(pending) <= UNFINISHED:
            continue
        yield text
        before, pending = [token], []
    if pending:
        yield task.decode(np.array(pending))


def write_text(text: str, stream: TextIO) -> None:
    """Write a text at once, as the stream can and may write it."""
    stream.write(encodable(text, stream))
    stream.flush()
