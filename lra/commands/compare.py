"""`lra compare`: is one model better than another? It needs neither torch nor a network."""

import argparse
import json
import sys

from lra.composition.arguments import Parser, add_results, path_word


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra compare`."""
    args = Parser(
        prog="lra compare",
        description="Test whether one model is better than another. Runs of the same task and seed "
        "form pairs; you get the mean difference with its 95 % interval, a p-value (paired t test, "
        "Holm's correction) and the smallest difference that these runs could detect. The exit "
        "code is 1 if a damaged file excludes runs.",
        epilog="""\
examples:
  lra compare linear sdpa --sweep tutorial    compare sdpa with linear, in one sweep
  lra compare sdpa linear performer --best    compare every model with the best of them
  lra compare linear published=65.9 --where task=text --margin 1    is a number reproduced?
  lra compare optim.peak_learning_rate=1e-3 optim.peak_learning_rate=3e-3 --where model=linear""",
    )
    args.add_argument(
        "names", nargs="*", metavar="NAME",
        help="two or more groups of runs; the first is compared with every other. NAME is a model "
        "or baseline as reports name it, or KEY=VALUE of an option or column; quotes join several "
        "conditions, as in 'linear optim.steps=400'; published=65.9 is a number of a paper",
    )  # fmt: skip
    args.add_argument(
        "--best", action="store_true", help="compare the best group of runs with every other"
    )
    args.add_argument(
        "--untuned", action="store_true",
        help="after a search, compare trainings with the options that the search started from; "
        "default: trainings with the options that the search chose",
    )  # fmt: skip
    args.add_argument(
        "--metric", help="metric to compare; default: the first metric that all runs have"
    )
    args.add_argument("--split", help="split of the data; default: test")
    args.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE",
        help="compare only the runs with this value, for example task=listops; repeatable",
    )  # fmt: skip
    add_results(args)
    args.add_argument("--sweep", help="name of a sweep; default: every stored run")
    args.add_argument(
        "--rows", type=path_word, action="append", default=[],
        help="read a published file of rows, in place of a results folder; repeatable",
    )  # fmt: skip
    args.add_argument(
        "--matrix", action="store_true",
        help="also print a matrix: is the group of a row better than that of a column?",
    )  # fmt: skip
    args.add_argument(
        "--margin", type=_margin,
        help="also test whether two groups are equivalent: whether their true difference is below "
        "this margin, in the unit of the table, for example 1 (percentage point)",
    )  # fmt: skip
    args.add_argument("--json", action="store_true", help="print one JSON object")
    return args


def _margin(word: str) -> float:
    """Return the positive number in an argument."""
    try:
        number = float(word)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"got {word!r}; wanted a number above 0, such as 1")
    return number


def main(argv: list[str]) -> int:
    """Print the verdict and the table of a comparison; return 1 if a damaged file excludes runs."""
    choice = parser().parse_intermixed_args(argv)
    from lra.reports.comparison.matrix import matrix_table
    from lra.reports.comparison.pairs import compare
    from lra.reports.comparison.wording import as_json, comparison_table, verdict
    from lra.results.comparing import compare_words
    from lra.terminal.result_table import print_result

    numbers, sides, comparisons, left_out = compare_words(
        choice.names, root=choice.results, sweep=choice.sweep, files=choice.rows,
        metric=choice.metric, split=choice.split, where=choice.where, best=choice.best,
        untuned=choice.untuned,
    )  # fmt: skip
    if choice.json:
        found = as_json(numbers, comparisons, choice.margin)
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        for comparison in comparisons:
            print(verdict(numbers, comparison, choice.margin))
        if choice.matrix:
            print_result(matrix_table(numbers, sides, compare(numbers, sides, every=True)))
        print_result(comparison_table(numbers, comparisons))
    for line in left_out:
        print(f"excluded: {line}", file=sys.stderr)
    return 1 if left_out else 0
