"""`lra generate`: continue a prompt with a trained language model."""

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
"""The most tokens that can form an incomplete character: a UTF-8 character has up to 4 bytes."""
REPLACED = "\N{REPLACEMENT CHARACTER}"


@runtime_checkable
class Spells(Protocol):
    """A task that converts text to token ids and back."""

    def encode(self, text: str) -> "Integer[np.ndarray, ' n']":
        """Return the token ids of a text. Raises ValueError if the vocabulary cannot spell it."""
        ...

    def decode(self, ids: "Integer[np.ndarray, ' n']") -> str:
        """Return the text of the given token ids."""
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
        help="read the prompt from a file; a line end at its end is removed; without --prompt and "
        "--prompt-file, the prompt is read from stdin",
    )  # fmt: skip
    args.add_argument(
        "--tokens", type=whole(1, MOST), default=200, metavar="N",
        help="number of tokens to write; default: 200",
    )  # fmt: skip
    args.add_argument(
        "--samples", type=whole(1, MOST), default=1, metavar="N",
        help="number of continuations to write; default: 1",
    )  # fmt: skip
    args.add_argument(
        "--greedy", action="store_true", help="write the most likely token at every position"
    )
    args.add_argument(
        "--temperature", type=float, default=1.0, metavar="T",
        help="divide the logits by T before drawing; default: 1",
    )  # fmt: skip
    args.add_argument(
        "--top-k", type=whole(1, MOST), metavar="K",
        help="draw each token from the K most likely tokens only",
    )  # fmt: skip
    args.add_argument(
        "--top-p", type=float, metavar="P",
        help="draw each token from the smallest set of tokens with a total probability of at "
        "least P (nucleus sampling)",
    )  # fmt: skip
    args.add_argument(
        "--condition", metavar="CLASS",
        help="name or number of the class of the text, for models trained with "
        "task.class_conditional=true",
    )  # fmt: skip
    args.add_argument(
        "--seed", type=whole(0, 2**63 - 1), default=0,
        help="seed of the random draws; with equal logits, a seed gives the same text on every "
        "machine; default: 0",
    )  # fmt: skip
    add_results(args)
    add_plugin(args, "name of your package, if the run uses it")
    return args


def main(argv: list[str]) -> int:
    """Write the continuations of the prompt to stdout; return the exit code."""
    arguments = parser().parse_args(argv)
    sampling = sampling_of(arguments)
    text = prompt_of(arguments)

    from lra.sweep.stored_weights import completed_training

    training = completed_training(arguments.cell, arguments.results, "RUN")
    run = training.run()
    task = speller(run, training.key)
    ids = prompt_ids(task, text)
    condition = condition_of(run, arguments.condition)
    model = trained_model(run, training.checkpoints)
    if sampling.top_k is not None and sampling.top_k > model.facts.vocabulary:
        raise CommandError(
            f"--top-k {sampling.top_k}: the vocabulary has only {model.facts.vocabulary:,} tokens; "
            "choose a smaller number, or remove this argument to draw from all tokens"
        )
    import torch

    from lra.models.backbone.seeding import derive
    from lra.models.backbone.writing import open_text

    begun = time.perf_counter()
    prompt = torch.from_numpy(ids.astype(np.int64))
    opening = open_text(model, prompt, arguments.tokens, condition)
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
        f"wrote {written:,} tokens in {seconds:.2f} s, {written / seconds:,.0f} tokens/s; reading "
        f"the prompt of {len(ids):,} tokens took {prefill_s:.2f} s",
        file=sys.stderr,
    )
    return 0


def sampling_of(arguments: argparse.Namespace) -> "TokenSampling":
    """Return how tokens are drawn. Raises CommandError if a flag has an invalid value."""
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
                    "--greedy writes the most likely token at every position, so "
                    f"{flag} {value} has no effect; remove one of the two arguments"
                )
        return GREEDY
    if not 0 < arguments.temperature < math.inf:
        raise CommandError(
            f"--temperature: got {arguments.temperature}; wanted a positive finite number. Use "
            "--greedy to write the most likely token at every position"
        )
    if arguments.top_p is not None and not 0 < arguments.top_p <= 1:
        raise CommandError(f"--top-p: got {arguments.top_p}; wanted a number above 0 and at most 1")
    return TokenSampling(
        temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p
    )


def prompt_of(arguments: argparse.Namespace) -> str:
    """Return the prompt. Raises CommandError if it is missing, empty, or not valid text."""
    if arguments.prompt is not None and arguments.prompt_file is not None:
        raise CommandError("got both --prompt and --prompt-file; give only one of them")
    if arguments.prompt is not None:
        text, origin = str(arguments.prompt), "--prompt"
    elif arguments.prompt_file is not None:
        content, origin = arguments.prompt_file.read_bytes(), str(arguments.prompt_file)
        text = content.decode(errors="surrogateescape").removesuffix("\n")
    elif sys.stdin.isatty():
        raise CommandError(
            "there is no prompt: give --prompt TEXT, --prompt-file FILE, or a text on stdin"
        )
    else:
        text, origin = sys.stdin.read().removesuffix("\n"), "stdin"
    if not text:
        raise CommandError(f"the prompt from {origin} is empty; give at least one character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CommandError(
            f"the prompt from {origin} is not UTF-8 text (character {error.start + 1} is invalid); "
            "save the text as UTF-8"
        ) from error
    return text


def speller(run: Run, key: str) -> Spells:
    """Return the task of `run`, which converts between text and tokens.

    Args:
        run: A training of a causal language model.
        key: The key of the run, for messages.

    Raises:
        CommandError: The model of the run is not a causal language model, or its tokens are not
            text.
    """
    from lra.composition.compose import facts
    from lra.models.backbone.config import Head

    head = facts(run).head
    if head != Head.language_modelling:
        raise CommandError(
            f"run {key} has no causal language model, because task={run.task_name} trains a model "
            f"for {head.value.replace('_', ' ')}. Choose a training on a task such as text8, "
            "enwik8, pg19 or wikitext103"
        )
    if not isinstance(run.task, Spells):
        raise CommandError(
            f"run {key} was trained on {run.task_name}, whose tokens are not text. Choose a "
            "training on a task such as text8, enwik8, pg19 or wikitext103"
        )
    if run.task.spec.tokenizer:  # it is learned from the data
        run.task.prepare()
    return run.task


def prompt_ids(task: Spells, text: str) -> "Integer[np.ndarray, ' n']":
    """Return the token ids of the prompt `text`. Raises CommandError if there are none."""
    try:
        ids = task.encode(text)
    except ValueError as error:
        raise CommandError(f"the prompt cannot be converted to tokens: {error}") from error
    if not len(ids):
        raise CommandError(f"the prompt {text!r} contains no token; give at least one word")
    return ids


def condition_of(run: Run, chosen: str | None) -> int | None:
    """Return the id of the condition that `--condition` names; None if the task has none.

    Raises:
        CommandError: There is no such condition, or it is missing, or the task has none.
    """
    count = run.task.spec.conditions
    if not count:
        if chosen is not None:
            raise CommandError(
                f"--condition {chosen}: {run.model_name} was trained on {run.task_name} without "
                "conditions; remove this argument"
            )
        return None
    names = getattr(run.task, "condition_names", ())
    ids = {str(number): number for number in range(count)}
    ids |= {name: number for number, name in enumerate(names)}
    if chosen not in ids:
        problem = "--condition is missing" if chosen is None else f"--condition {chosen}"
        raise CommandError(
            f"{problem}: this model writes text of one of {count} classes; give a number from 0 to "
            f"{count - 1}" + (f", or {' or '.join(names)}" if names else "")
        )
    return ids[chosen]


def trained_model(run: Run, checkpoints: str) -> "Backbone":
    """Return the model of `run` with the weights of its last checkpoint, in evaluation mode."""
    from lra.composition.compose import build_model
    from lra.runners.training.checkpoint import Checkpoints

    model = build_model(run)
    model.load_state_dict(Checkpoints(Path(checkpoints)).weights())
    return model.eval()


def headline(run: Run, key: str, opening: "Opening") -> str:
    """Return a line on the model, its training, and how it computes each new token.

    Args:
        run: The training.
        key: Its key.
        opening: The model after it has read the prompt.
    """
    window = f"{opening.model.facts.max_length:,} tokens"
    if opening.memory.tokens is None:
        way = f"each new token needs a pass over the last {window}"
    elif opening.memory.endless:
        way = "each new token is computed from the model's state"
    else:
        way = (
            f"each of the first {window} is computed from the model's state, and each later token "
            f"needs a pass over the last {window}"
        )
    task = f"{run.task_name} ({run.task.spec.source})"
    return f"run {key} trained {run.model_name} on {task} for {run.optim.steps:,} steps; {way}"


def pieces(
    task: Spells, prompt: "Integer[np.ndarray, ' n']", tokens: Iterator[int]
) -> Iterator[str]:
    """Yield the text of `tokens` in pieces, each as soon as its last character is complete.

    Each token is decoded together with the token before it, because the text between two tokens,
    such as a blank between words, can depend on both.

    Args:
        task: Decodes token ids.
        prompt: The token ids of the prompt.
        tokens: The token ids that the model writes.
    """
    previous, pending = [int(prompt[-1])], list[int]()
    for token in tokens:
        pending.append(token)
        printed = task.decode(np.array(previous))  # what is printed already, and is cut off below
        printed = "" if printed.endswith(REPLACED) else printed
        text = task.decode(np.array([*(previous if printed else ()), *pending]))[len(printed) :]
        if text.endswith(REPLACED) and len(pending) <= UNFINISHED:  # an incomplete character
            continue
        yield text
        previous, pending = [token], []
    if pending:
        yield task.decode(np.array(pending))


def write_text(text: str, stream: TextIO) -> None:
    """Write `text` without delay, with characters replaced that the stream cannot encode."""
    stream.write(encodable(text, stream))
    stream.flush()
