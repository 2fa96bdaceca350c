"""Writes docs/families, a page per family from its docstring, traits and rows: `make pages`."""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from lra.choices.explain import choice_options, typed_value
from lra.choices.kernels import operations_of
from lra.choices.traits import describe_traits, growth
from lra.composition.catalogue import choices
from lra.composition.compose import group_file
from lra.composition.selection import kinds
from lra.composition.yaml_text import load
from lra.models.kernels.providers import all_kernels
from lra.reports.figures.drawing import looks, style
from lra.reports.figures.panels import scaling_figure
from lra.reports.figures.scaling import scaling_data
from lra.reports.rows import EQUAL, CostPoint, by_setting, cost_points, cost_rows, prepare
from lra.reports.stems import stem as file_stem
from lra.reports.tables.costs import crossover_table, efficiency_table, growth_table, modes
from lra.reports.tables.scores import accuracy_table, splits
from lra.reports.tables.table import Entry, Table, escape_markdown, to_markdown
from lra.results.rows import published_cells, published_rows
from lra.runners.storage.fingerprint import sources
from lra.sweep.model_names import with_backbones

ROOT = Path(__file__).resolve().parents[2]
BACKGROUND = ("softmax", "sdpa", "identity")
TO_8192 = "runner.lengths=[256,512,1024,2048,4096,8192]"
STATE_SPACES = f"model=s4,s5,lru,mega,sgconv,hyena,multires_conv {TO_8192}"
OTHERS = (
    "adaptive_span,collaborative,compressive_transformer,convbert,dynamic_conv,funnel,"
    "grouped_query,lambda_layer,latent_attention,light_conv,lite_transformer,lstm,multi_query,"
    "qrnn,shortformer,talking_heads,transformer_xl"
)
OF_2026 = "gated_delta_net2,mamba3,linoss,slots,path,indexed,compressed,rg_lru,short_conv"
COMMANDS = {
    "families": "lra run -m +experiment=families",
    "families_causal": (
        "lra run -m +experiment=families sweep=families_causal runner.direction=causal"
    ),
    "families_state_spaces": f"lra run -m +experiment=families {STATE_SPACES}",
    "families_state_spaces_causal": (
        "lra run -m +experiment=families sweep=families_causal runner.direction=causal "
        f"{STATE_SPACES}"
    ),
    "families_gated": (
        "lra run -m +experiment=families sweep=families_gated model=gla,hgrn2,mamba,mamba2,mlstm,"
        f"delta_net,gated_delta_net,kimi_delta,differential {TO_8192}"
    ),
    "families_gated_causal": (
        "lra run -m +experiment=families sweep=families_gated_causal runner.direction=causal "
        "model=gla,hgrn2,mamba,mamba2,mlstm,delta_net,gated_delta_net,kimi_delta,retnet,rwkv7,"
        "forgetting,moba,nsa,based,differential,slstm,ttt "
        "runner.lengths=[512,1024,2048,4096,8192]"
    ),
    "families_mesa_causal": (
        "lra run -m +experiment=families sweep=families_mesa_causal runner.direction=causal "
        f"model=mesa_net,slstm,ttt {TO_8192}"
    ),
    "families_rwkv6": "lra run -m +experiment=families sweep=families_rwkv6 model=rwkv6",
    "families_rwkv6_causal": (
        "lra run -m +experiment=families sweep=families_rwkv6_causal runner.direction=causal "
        "model=rwkv6"
    ),
    "families_others": (
        "lra run -m +experiment=families sweep=families_others model=retnet,rwkv7,ttt,slstm,"
        f"forgetting,moba,nsa,based,{OTHERS} {TO_8192}"
    ),
    "families_others_causal": (
        "lra run -m +experiment=families sweep=families_others_causal runner.direction=causal "
        f"model={OTHERS} runner.lengths=[1024,4096,8192]"
    ),
    "families_2026": f"lra run -m +experiment=families sweep=families_2026 model={OF_2026}",
    "families_2026_causal": (
        "lra run -m +experiment=families sweep=families_2026_causal runner.direction=causal "
        f"model={OF_2026} {TO_8192}"
    ),
    "families_train": "lra run -m +experiment=families_train",
    "families_text": (
        "lra run -m +experiment=families_train runner=train sweep=families_text task=text "
        "task.max_length=256 optim.steps=200 runner.evaluate_splits=[validation]"
    ),
}
"""What makes the rows of a published file, by the sweep that begins its name."""
ANCHOR = "how-to-read-what-was-measured"
OPENING = """\
A family is a kind of model, for example Mamba-2. The *mixer* of a family is the layer that mixes
tokens. Each of the {count} families below has a page with its formula, options, time and memory.
Choose one, list its options and train it:

    lra list performer
    lra run model=performer

`make pages` writes these pages from docstrings, options and published rows.
"""
KINDS = {
    "convolutions": (
        "each token combines its neighbours with a short learned kernel",
        "texts with local structure, also next to attention",
    ),
    "exact attention": (
        "every token attends to every other token",
        "up to a few thousand tokens; `sdpa` is the reference for all comparisons",
    ),
    "gated recurrences and delta rules": (
        "linear attention with gates: each token updates a state by decay or error correction",
        "long causal sequences, language models, decoding with a state of fixed size",
    ),
    "hashing and sorting": (
        "tokens attend to keys in the same hash bucket or in a sorted block",
        "sparse patterns that depend on content",
    ),
    "kernels and features": (
        "feature maps replace the softmax, so that sums over keys are computed once",
        "long sequences in linear time, causal or not",
    ),
    "landmarks and low rank": (
        "keys and values are compressed to a few landmarks or slots",
        "encoders of long inputs, such as classification",
    ),
    "memory of segments": (
        "a segment also attends to stored inputs of earlier segments",
        "language models of texts longer than a training window",
    ),
    "other structure": (
        "a Fourier transform, pooling, a hierarchy, learned weights, or a state between chunks",
        "comparisons with a specific idea",
    ),
    "recurrent networks": (
        "gates update a vector state token by token",
        "baselines from before attention, streams of any length",
    ),
    "state spaces and long convolutions": (
        "a linear recurrence, computed by a scan or as a convolution over the whole sequence",
        "long signals such as pixels, and Long Range Arena",
    ),
    "windows and blocks": (
        "each token attends to its neighbours, selected blocks or global tokens",
        "long texts whose relevant context is mostly near",
    ),
}
"""How a kind of families mixes tokens, and what to use it for."""
LEAK = ", but later tokens can change which earlier tokens these are"
READING = """\
## What holds on every page

- **Symbols**: n or l is the sequence length, h or H the number of heads, and C the number of tokens
  in a chunk or block. d is the width of the model. In formulas that also contain D, D is the width
  of all heads together, and d the width of one head. k and v are the widths of a head's keys and
  values. sigma is the sigmoid function.
- **Labels** of paragraphs: *Published* gives the settings of the paper's models, and *Differs*
  names what lra does differently from the paper. *Notation* translates symbols of the paper into
  our symbols and options.
- **Cost** is the number of operations of a forward pass; a multiply-add counts as two operations. A
  backward pass takes two to two and a half times as many operations as a forward pass.
- **Bidirectional forms** of causal recurrences are additions of this project: the same weights read
  the sequence from both ends, and the two outputs are added.
- **Initial values** of parameters are those of the released code, with two exceptions. Projections
  and gates are Xavier-uniform with zero biases, except in lstm, luna, mega, qrnn, rwkv6, rwkv7 and
  slstm. Short convolutions start as in PyTorch. (Released models often draw projections and short
  convolutions from N(0, 0.02).) Tests compare the distribution of every parameter with the released
  layers.
- **Guarantees** on a page hold for the default options of the family. Sizes of states are those of
  a model with three layers, 64 channels and 2 heads. *Exact* means that a causal output depends
  only on the token itself and on earlier tokens. With a *selection leak*, later tokens can change
  which earlier keys a token attends to.
- **Growth**: the code of each family declares how its operations and activations grow with the
  length n, and tests count them. The projections of a layer add n × width² operations.
- **State**: a model with a state along time can continue a text by segments or token by token. A
  page gives the bytes of this state for one sequence in one layer, in float32.
- **Padding** never changes the outputs of real tokens. If a page does not name a feature, the
  family does not support it.

If a family is an exception to one of these rules, its page says so.

## How to read what was measured

Tables compare a family with [exact attention (SDPA)](../measuring.md#time) on the same machine.
Speed 2.0 means twice as fast as SDPA, and memory 0.5 means half of its memory
([marks](../reading.md#marks)). A table on `step` measures a training step. All rows use small
ListOps batches in float32 on two threads of an AMD EPYC, or of an Intel Xeon if the file of rows
has `xeon` in its name. An empty field means that this length was not measured.

- *Faster than SDPA from 714 tokens on*: the family is faster at all measured lengths above this
  one. The length is interpolated on logarithmic axes, and its 95 % interval follows in brackets.
  "Becomes faster at 900 tokens or at a smaller length" gives only the upper end of the interval,
  because its lower end is below all measured lengths.
- *Growth exponents*: time and memory per sequence are fitted by c × length^e over all lengths. An
  exponent e of 1 means linear growth, and 2 means quadratic growth.
- Accuracies are in percent ([intervals and baselines](../reading.md#a-score)).
"""
ROWS = """\
## Rows behind these pages

Print all numbers of a file with `lra report --rows reports/published/FILE`. Each line of this list
names a file, the rows in it, and the command that measures them again.
"""
HELD_BY = 3
"""An option's meaning on at least so many pages stands in the overview, once."""
OTHER_CODE = re.compile(
    r"^(?:(?:Variant|Parity) .*\n(?:(?: .*)?\n)*"
    r"|(?<=\n\n)`?variant[:=] ?lra`?[ ,].*\n(?:.+\n|\n+(?= ))*)",
    re.MULTILINE,
)
"""Parts of a docstring on the form that equals released code; an option chooses it."""
AGAINST = " compared with SDPA that has the same positions"
SAME_POSITIONS = " with the same kind of positions"
LONGEST = "Inputs can be at most as long as the longest input for which the model was built."
SIMULATED = "A mask simulates the sparsity: all scores are computed, and most are masked."
LOOKS_BACK = ". In bidirectional models, this family still reads earlier tokens only"
POSITIONS = "[position options](../positions.md#which-family-honours-which)"
SHARED = "options-of-several-families"
KERNELS = "which-kernels-do-the-families-use"


def docstring(class_path: str) -> str:
    """Return the docstring of the module that holds a class, without importing it.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    module = class_path.rpartition(".")[0]
    text = sources([module])[module].read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or ""


def options(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and meaning of each option of a model's own."""
    for option in choice_options(file):
        listed = set(re.findall(r"\w+", option.meaning))  # most meanings name the values
        *others, last = option.values or ("",)
        values = (
            f" Allowed values: {', '.join(others)} or {last}." if {*option.values} - listed else ""
        )
        yield option.key.rpartition(".")[2], typed_value(option.default), option.meaning + values


def shared(files: Iterable[Path]) -> set[tuple[str, str]]:
    """Return name and commonest meaning of each option that several families have."""
    held = Counter((name, meaning) for file in files for name, _, meaning in options(file))
    commonest: dict[str, str] = {}
    for (name, meaning), families in held.most_common():
        if families >= HELD_BY:
            commonest.setdefault(name, meaning)
    return {*commonest.items()}


def described(text: str) -> tuple[str, str]:
    """Return the first line of a docstring, and the rest without what concerns other code alone."""
    first, _, rest = text.partition("\n")
    return first, OTHER_CODE.sub("", f"{rest}\n").strip("\n")


def capabilities(file: Path) -> list[str]:
    """Return what an instance with default options guarantees, as lines of a list."""
    facts = describe_traits(load(file), (), str(file))
    refused = [
        f"The model cannot be {way}, because {re.sub(': got [^;]*;', ':', reason)}."
        for way, reason in facts["refusals"].items()
    ]
    if not facts["directions"]:
        return refused
    operations, activations = growth(facts)
    ways = " and ".join(facts["directions"])
    if "causal" in facts["directions"]:
        ways += f". A causal output depends on earlier tokens only{LEAK * facts['selection_leak']}"
    if facts["looks_back"]:
        ways += LOOKS_BACK
    offers = {
        "cross": "cross attention",
        "random_draws": "saved random features",
        "weight_dropout": "attention dropout",
        "reversible": "reversible residual connections",
    }
    held = [
        " ".join([word, *(f"({way} only)" for way in facts["differs"].get(key, ()))])
        for key, word in offers.items()
        if facts[key]
    ]
    *others, last = [*held, *([POSITIONS] if facts["positions"] else [])] or [""]
    has = f"{', '.join(others)} and {last}" if others else last
    lines = [
        f"The model can be {ways}.",
        f"For n tokens, the number of operations grows as {operations}, and the memory of "
        f"activations for the backward pass grows as {activations}.",
        f"To read a sequence token by token, each layer stores {sizes(facts['state_bytes'])}."
        if facts["state"]
        else "",
        f"The family supports {has}." if has else "",
        "Inputs can be at most as long as the longest input for which the model was built."
        if facts["max_length"]
        else "",
        "" if "keep" in facts["supports"] else "Padding raises an error.",
        "A mask simulates the sparsity: all scores are computed, and most are masked."
        if facts["simulated"]
        else "",
        public_kernels_for(file),
        *refused,
    ]
    return [*filter(None, lines)]


def public_kernels_for(file: Path) -> str:
    """Return a sentence on the public kernels for the operations that a family calls, or ""."""
    known = all_kernels()
    called = [name for name in operations_of(load(file), str(file)) if name in known]
    kernels = [
        f"`{name}` ({', '.join(f'`{each.name}` of {each.package}' for each in known[name])})"
        for name in called
    ]
    return f"[Public kernels](../gpu.md#{KERNELS}) exist for {', '.join(kernels)}." * bool(kernels)


def sizes(state_bytes: Mapping[int, int]) -> str:
    """Return how many bytes the state of a layer has, by the memory where it grows with that."""
    (memory, first), *rest = state_bytes.items() or [(0, 0)]
    grows = any(size != first for _, size in rest)
    return f"{first:,} bytes" + (f" if it remembers {memory} tokens" if grows else "")


def prose(text: str) -> str:
    """Return a text as Markdown, whose only marks are code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        each
        if each.startswith("`")
        else re.sub(r"\S.*\S|\S", lambda m: escape_markdown(m[0]), each)
        for each in parts
    )


def option_lines(file: Path, known: Collection[tuple[str, str]]) -> list[str]:
    """Return a list of a model's options, and a line of those whose meanings are in `known`."""
    given = [*options(file)]
    listed = [each for each in given if each[::2] not in known]
    lines = [f"- `{name}={default}`: {prose(means)}" for name, default, means in listed]
    lines += [""] if lines else []
    shared_ones = [f"`{each[0]}={each[1]}`" for each in given if each[::2] in known]
    if shared_ones:
        title = f"This family also has [options that several families share](README.md#{SHARED})"
        lines += [f"{title}: {', '.join(shared_ones)}.", ""]
    return lines or ["This family has only the options of the backbone.", ""]


def page(
    name: str,
    file: Path,
    rows: Sequence[tuple[Path, pd.DataFrame]],
    folder: Path,
    known: Collection[tuple[str, str]],
) -> list[str]:
    """Return the lines of one family's page; its figures go into `folder`.

    The meanings of the options in `known` stand in the overview.
    """
    node = load(file)
    core = node.get("mixer") or node["stack"]
    about = node.get("about") or {}
    first, rest = described(docstring(core["class_path"]))
    module = core["class_path"].rpartition(".")[0]
    code = sources([module])[module].relative_to(ROOT).as_posix()
    source = linked(str(about.get("paper", "")))
    lines = [f"# {name}", "", prose(first), ""]
    lines += [f"Run `lra run model={name}`. Paper: {source}. [Code](../../{code}).", ""]
    lines += ["## What it computes", ""]
    home = module.rpartition(".")[2]
    if home == name or not file.with_name(f"{home}.yaml").exists():
        lines += ["```text", rest, "```", ""]
        if "variant" in core:
            lines += [
                "`variant=lra` computes what [the Long Range Arena code]"
                "(../protocols.md#variantlra-and-the-released-code) computes.",
                "",
            ]
        lines += ["## Options", "", *option_lines(file, known)]
    else:
        theirs = [*options(file.with_name(f"{home}.yaml"))]
        other = [f"`{each[0]}={each[1]}`" for each in options(file) if each not in theirs]
        lines += [
            f"This family is [{home}]({home}.md#what-it-computes) with {', '.join(other)}.",
            "",
        ]
    guarantees = capabilities(file)
    lines += ["## What it guarantees", "", *(f"- {each}" for each in guarantees), ""]
    numbers = measured(name, rows, folder)
    read = f"The overview explains [how to read these numbers](README.md#{ANCHOR})."
    if LOOKS_BACK in guarantees[0] and "bidirectional" in " ".join(numbers):
        read += (
            " In rows of the bidirectional form, this family reads earlier tokens only, while SDPA"
            " attends to all tokens, which takes more operations."
        )
    return [*lines, "## Measured", "", read, "", *numbers] if numbers else lines


def linked(paper: str) -> str:
    """Return a source with its arXiv numbers as links."""
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def measured(name: str, files: Sequence[tuple[Path, pd.DataFrame]], folder: Path) -> list[str]:
    """Return what published rows say about a family; its figures go into `folder`.

    How the numbers are read, and setting and command of each file, is in the overview.
    """
    tables, after, scored = list[Table](), list[str](), list[str]()
    own_positions = "positions" in group_file("model", name).get("backbone", {})
    for source, frame in files:
        scored += scores(frame[frame["model"] == name], name)
        # the reference with the positions of all others is in the rows of these
        timed = frame if own_positions else frame[frame["model"].isin([name, "sdpa"])]
        for part in by_setting(cost_rows(timed)) if (timed["model"] == name).any() else []:
            points = cost_points(part.rows)
            way = "causal" if part.rows["causal"].all() else "bidirectional"
            for mode in modes(points):
                alone = [point for point in points if point.mode == mode and point.model == name]
                rows = by_length(alone, mode, way)
                if rows is None:
                    continue
                joined(tables, rows)
                after += facts(alone, way)
                after += curve(name, frame, mode, source.stem, folder)
    drawn = [
        line for each in tables for line in (to_markdown(each).partition("\n\n")[2].strip(), "")
    ]
    return [*drawn, *after, *scored, *([""] if scored else [])]


def joined(tables: list[Table], more: Table) -> None:
    """Append a table, or its rows to one of its kind, which then has the lengths of both."""
    at = next((i for i, each in enumerate(tables) if each.stub == more.stub), None)
    if at is None:
        tables.append(more)
        return
    both = (tables[at], more)
    columns = {column.title: column for table in both for column in table.columns}
    lengths = sorted(columns, key=lambda title: int(title.replace(",", "")))
    rows = []
    for table in both:
        for row in table.rows:
            found = dict(zip((c.title for c in table.columns), row.entries, strict=True))
            entries = tuple(found.get(length, Entry(text="")) for length in lengths)
            rows.append(replace(row, entries=entries))
    merged = tuple(columns[length] for length in lengths)
    tables[at] = replace(tables[at], columns=merged, rows=tuple(rows))


def scores(rows: pd.DataFrame, name: str = "") -> list[str]:
    """Return accuracies as lines of a list: of whom, of which task and of which split."""
    lines = []
    for split in splits(rows):
        table = accuracy_table(rows, split)
        for row in () if table is None else table.rows:
            for column, entry in zip(table.columns if table else (), row.entries, strict=True):
                if entry.text:
                    whose = "" if row.title == name else f"{row.title}, "
                    line = f"{whose}{column.group or column.title}, {split}: {entry.text} %"
                    lines.append(f"- {escape_markdown(line)}")
    return lines


def by_length(points: Sequence[CostPoint], mode: str, way: str) -> Table | None:
    """Return what one kind of pass costs by length; None where the family refuses it."""
    table = efficiency_table(points, mode)
    if table is None:
        return None
    rows = [replace(row, title=row.section, section="") for row in table.rows]
    if all(entry.text.startswith("unsupported") for row in rows for entry in row.entries):
        return None
    paired = [
        replace(row, title=f"{what}{AGAINST if EQUAL in row.title else ''}, {way}")
        for row in rows
        for what in ("speed", "memory")
        if what in row.title and "relative" in row.title
    ]
    stub = f"{mode}, × SDPA" if paired else mode
    return replace(table, title="", caption="", stub=stub, rows=tuple(paired or rows))


def facts(points: Sequence[CostPoint], way: str) -> list[str]:
    """Return crossover and growth of one kind of pass as a line."""
    crossover, rates = crossover_table(points), growth_table(points)
    form = f"The {way} form"
    found = [
        crossed(entry.text, form, "SDPA" + SAME_POSITIONS * (EQUAL in column.title))
        for row in (crossover.rows[:1] if crossover else ())
        for column, entry in zip(crossover.columns if crossover else (), row.entries, strict=True)
    ]
    if rates:
        exponents = [
            f"the growth exponent of {column.group.rpartition(', ')[2]} is {spelled(entry.text)}"
            for column, entry in zip(rates.columns, rates.rows[0].entries, strict=True)
            if column.title == "exponent"
        ]
        found.append(f"In the {way} form, {', and '.join(exponents)}.")
    return [escape_markdown(" ".join(found)), ""] if found else []


def crossed(text: str, form: str, other: str) -> str:
    """Return a sentence on the length from which a form is faster than exact attention."""
    if text.startswith("not up to "):
        longest = text.removeprefix("not up to ")
        return f"{form} is still slower than {other} at {longest} tokens, the longest measured."
    if text.startswith("≤"):
        most = text.removeprefix("≤ ")
        return f"{form} becomes faster than {other} at {most} tokens or at a smaller length."
    said = spelled(text)
    if text[:1].isdigit():
        length, *sure = said.partition(" (")
        return f"{form} is faster than {other} from {length} tokens on{''.join(sure)}."
    return f"The length from which {form.lower()} is faster than {other} is {said}."


def spelled(text: str) -> str:
    """Return a number or its doubt, with the interval behind it in words."""
    said = re.sub(r" \[(.+), (.+)\]", r" (95 % interval: \1 to \2)", text)
    return re.sub(r"\((\d+ lengths)\)", r"(only \1 were measured)", said)


def curve(name: str, frame: pd.DataFrame, mode: str, stem: str, folder: Path) -> list[str]:
    """Draw time against length beside exact attention, and return the lines that show it."""
    points = cost_points(frame[frame["model"].isin([name, *BACKGROUND])])
    data = scaling_data(points, mode, "time")
    own = data[data["model"] == name]
    if name in BACKGROUND or own["value"].isna().all() or own["length"].nunique() == 1:
        return []
    figure = scaling_figure(data, looks([name]), {name: [name]})
    path = folder / "figures" / f"{name}-{stem}-{file_stem(mode)}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    with style():
        figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
    return [f"![time of {name}](figures/{path.name})", ""]


def index(
    files: Mapping[str, Path],
    rows: Sequence[tuple[Path, pd.DataFrame]],
    known: Collection[tuple[str, str]],
) -> list[str]:
    """Return the lines of the overview."""
    by_kind = kinds()
    shown = {name for names in by_kind.values() for name in names}
    if rest := sorted(set(files) - shown):
        by_kind["others"] = rest
    opening = OPENING.format(count=len(files))
    lines = ["# Families", "", *opening.splitlines(), "", *kind_table(files, by_kind), ""]
    for kind, names in by_kind.items():
        lines += [f"## {kind.capitalize()}", ""]
        for name in names:
            about: dict[str, Any] = load(files[name]).get("about") or {}
            lines.append(f"- [{name}]({name}.md): {about.get('summary', '')}")
        lines.append("")
    lines += [*READING.splitlines(), "", "## Options of several families", ""]
    lines += [f"- `{name}`: {prose(meaning)}" for name, meaning in sorted(known)]
    lines += ["", *ROWS.splitlines(), "", *(recorded(*each) for each in rows)]
    floors = [line for _, frame in rows for line in scores(frame[frame["baseline"] != ""])]
    return [*lines, *(["", "Baselines:", "", *floors] if floors else [])]


def kind_table(files: Mapping[str, Path], by_kind: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the kinds of families as a table: what they do, how they grow, and what for."""
    lines = [
        "| kind | families | how tokens are mixed | growth with length n | use it for |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, names in by_kind.items():
        mechanism, use = KINDS.get(kind, ("", ""))
        facts = [describe_traits(load(files[name]), (), str(files[name])) for name in names]
        grown = [*zip(*(growth(each) for each in facts if each["directions"]), strict=True)]
        operations, memory = (
            " or ".join(rate for rate, _ in Counter(each).most_common()) for each in grown
        )
        rates = f"operations {operations}; memory {memory}"
        links = ", ".join(f"[{name}]({name}.md)" for name in names)
        anchor = re.sub(r"\W+", "-", kind.lower())
        lines.append(f"| [{kind}](#{anchor}) | {links} | {mechanism} | {rates} | {use} |")
    return lines


def recorded(source: Path, frame: pd.DataFrame) -> str:
    """Return what a file of published rows holds, and its command, as a line of a list."""
    ways = {True: "causal", False: "bidirectional"}
    held = ", ".join(ways[bool(part.rows["causal"].all())] for part in by_setting(cost_rows(frame)))
    held = held or f"accuracy, {', '.join(sorted(set(frame['task'])))}"
    (command,) = [f": `{COMMANDS[s]}`" for s in COMMANDS if source.stem.startswith(f"{s}-")] or [""]
    return f"- `{source.name}`, {held}{command}"


def write_pages(folder: Path, published_files: Sequence[Path]) -> list[Path]:
    """Write a page for each family and their overview; return the paths."""
    files = {file.stem: file for file in choices("model")}
    rows = [
        (source, prepare(with_backbones(published_rows(source), published_cells(source))))
        for source in published_files
    ]
    folder.mkdir(parents=True, exist_ok=True)
    known = shared(files.values())
    texts = {name: page(name, file, rows, folder, known) for name, file in files.items()}
    texts["README"] = index(files, rows, known)
    for name, lines in texts.items():
        (folder / f"{name}.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return [folder / f"{name}.md" for name in texts]


if __name__ == "__main__":
    kept = ROOT / "reports/published"
    newest = [max(kept.glob(f"{sweep}-*.jsonl")) for sweep in COMMANDS]
    for path in write_pages(ROOT / "docs/families", newest):
        print(path)
