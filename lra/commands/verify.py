"""`lra verify`: check one mixer, given by its name in lra or by its import path."""

import argparse
from typing import Any

from lra.api.verifying import count_findings, finding_lines, run_checks
from lra.composition.arguments import Parser, add_plugin_words, whole
from lra.composition.lookup import resolve
from lra.composition.yaml_text import parse
from lra.terminal.console import print_table


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra verify`."""
    args = Parser(
        prog="lra verify",
        description="Check that a mixer computes what lra expects: shapes, padding, independence "
        "of the other examples in a batch, no look-ahead, no side effects, gradients, precisions, "
        "token-by-token use, and the declared growth of time and memory with length. A failed "
        "check names its likely cause; the exit code is then 1.",
        epilog="""\
examples:
  lra verify performer
  lra verify performer features=128 --max-length 32   a quick check
  lra verify performer --device cuda                  run the checks on a GPU
  lra verify my_pkg.mixer:MyMixer window=64           check your own class
  lra verify my_family --config-dir my_conf --plugin my_pkg
  lra verify my_pkg.layers:MyLayer --wrap causal=false mask=padding operations=n^2""",
    )
    args.add_argument(
        "mixer", metavar="NAME|PKG.MODULE:Class",
        help="a name of `lra list models` or of --config-dir, or a class that Python can import "
        "from here",
    )  # fmt: skip
    args.add_argument(
        "options", nargs="*", default=[], metavar="OPTION=VALUE",
        help="arguments of the mixer's constructor",
    )  # fmt: skip
    args.add_argument(
        "--wrap", nargs="*", metavar="CLAIM=VALUE",
        help="check any nn.Module that you call with (hidden states, mask); CLAIM=VALUE is an "
        "argument of lra.wrap, which help(lra.wrap) explains",
    )  # fmt: skip
    args.add_argument(
        "--width", type=whole(1, 65_536), default=32, help="width of the model; default: 32"
    )
    args.add_argument(
        "--heads", type=whole(1, 65_536), default=2, help="number of heads; default: 2"
    )
    args.add_argument(
        "--max-length", type=whole(1, 1_000_000), default=256,
        help="longest sequence, in tokens; default: 256",
    )  # fmt: skip
    args.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu",
        help="device on which the checks run; default: cpu",
    )  # fmt: skip
    args.add_argument(
        "--dtype", choices=("float64", "float32"), default="float64",
        help="precision of most checks; use float32 for kernels that do not support float64; "
        "default: float64",
    )  # fmt: skip
    add_plugin_words(args)
    args.add_argument("--quiet", action="store_true", help="print failed checks only")
    return args


def main(argv: list[str]) -> int:
    """Print a line for each check; return 1 if a check failed, else 0."""
    flags = parser()
    arguments = flags.parse_intermixed_args(argv)
    by_name = options(arguments.options)
    claims = None if arguments.wrap is None else options(arguments.wrap)
    factory = resolve(arguments.mixer, by_name, arguments.config_dir, arguments.plugin, claims)
    findings = run_checks(
        factory, width=arguments.width, heads=arguments.heads, max_length=arguments.max_length,
        device=arguments.device, dtype=arguments.dtype,
    )  # fmt: skip
    if rows := finding_lines(f for f in findings if not (arguments.quiet and f.passed)):
        print_table(rows, indent="")
    print(count_findings(arguments.mixer, findings))
    return 0 if all(finding.passed for finding in findings) else 1


def options(words: list[str]) -> dict[str, Any]:
    """Return the values of `option=value` arguments by option; a value is YAML, as in `lra run`."""
    by_name = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise ValueError(f"got {word!r}; wanted option=value, as in features=128")
        by_name[name.removeprefix("model.mixer.")] = parse(value, word)
    return by_name
