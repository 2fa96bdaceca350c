"""Rules about the code as a whole, which no single test of a room would notice."""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

from lra.cli import VERBS
from tests.lra_process import python, unpacked

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("conf", "lra", "models", "tasks", "runners", "reports", "tests")
SHIPPED = ("lra", "models", "tasks", "runners", "reports")
MEANINGLESS = {"utils", "util", "common", "helpers", "helper", "misc"}


def sources(*rooms):
    return [file for room in rooms for file in sorted((ROOT / room).rglob("*.py"))]


@cache
def parsed(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def named(files):
    return [str(file.relative_to(ROOT)) for file in files]


def linted(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package `lra` that lies in a folder: it follows no `__path__`."""
    program = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert program, "import-linter is not installed beside this Python: make test installs it"
    return subprocess.run(
        [program, "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_import_rules_hold(tmp_path):
    unpacked(tmp_path)
    done = linted(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_import_rules_would_notice_a_wrong_arrow(tmp_path):
    lra = unpacked(tmp_path)
    for place, imported in (
        ("models/stray.py", "lra.runners.records"),
        ("models/ops/stray.py", "tests.literal.features"),
        ("reports/stray.py", "torch"),
    ):
        (lra / place).write_text(f'"""A wrong arrow."""\n\nimport {imported}\n')
    done = linted(tmp_path)
    assert done.returncode != 0
    assert "lra.models.stray" in done.stdout
    assert "lra.reports.stray" in done.stdout
    assert "lra.models.ops.stray -> tests" in done.stdout


def imported(file: Path) -> set[str]:
    """Return the packages that a file imports; of those of the tests, the first folder too."""
    found = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or ".")
    return {".".join(name.split(".")[: 2 if name.startswith("tests") else 1]) for name in found}


def test_literal_forms_owe_nothing_to_what_they_judge():
    allowed = {"collections", "functools", "jaxtyping", "math", "torch", "typing", "tests.literal"}
    for file in sources("tests/literal"):
        if not file.stem.startswith("test_"):
            assert imported(file) <= allowed, file.name


def printed(code: str) -> list[str]:
    """Run code in a Python of its own; return the words that it prints."""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_reports_bring_no_torch():
    modules, torch, wandb = printed(
        "import importlib, pkgutil, sys\nfrom lra import reports\n"
        "names = [m.name for m in pkgutil.walk_packages(reports.__path__, 'lra.reports.')]\n"
        "[importlib.import_module(name) for name in names]\n"
        "print(len(names), 'torch' in sys.modules, 'wandb' in sys.modules)"
    )
    assert int(modules) > 0
    assert (torch, wandb) == ("False", "False")


HEAVY = frozenset(
    {"torch", "torch._dynamo", "numpy", "pandas", "matplotlib", "scipy", "wandb", "hydra", "sympy",
     "omegaconf", "datasets", "transformers"}
)  # fmt: skip
SHELF = "reports/published/quickstart-epyc-2026-11-29.jsonl"
ANSWERS = (
    ("--version", "--help", "list", "list models", "clean", "completion bash"),
    ("run --help", "list --help", "data --help", "doctor --help", "verify --help", "show --help",
     "report --help", "list performer"),
    ("data prepare listops source=sample",
     "data prepare mqar train_examples=8 validation_examples=8 test_examples=8", "hydra",
     "numpy", "omegaconf"),
    ("run model=linear task=listops runner.dry_run=true results=none",
     "plan model=linear task=listops results=none",
     "hydra", "torch", "sympy", "numpy", "omegaconf"),
    (f"compare linear sdpa --rows {SHELF}", "pandas", "scipy", "numpy"),
)  # fmt: skip
"""Commands, and which heavy packages their answers need. PyTorch's shapes bring sympy."""
BEGUN = "import lra.execution.in_memory\n"
"""A sweep and its dashboard, which begin without what the report at the end needs."""


@pytest.mark.parametrize("told", ANSWERS, ids=lambda told: told[0])
def test_an_answer_brings_no_package_that_it_does_not_need(told, tmp_path):
    commands = [words.split() for words in told if words not in HEAVY]
    place = {"LRA_DATA": str(tmp_path / "data")}
    code = (
        f"import contextlib, io, os, sys\nos.environ |= {place}\nfrom lra import cli\n"
        "def call(words):\n"
        "    try: return cli.main(words)\n"
        "    except SystemExit as leave: return leave.code\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    codes = [call(words) for words in {commands}]\n"
        f"{BEGUN * ('torch' in told)}print(*codes, *sorted({set(HEAVY)} & {{*sys.modules}}))"
    )
    assert printed(code) == ["0"] * len(commands) + sorted(HEAVY.intersection(told))


def test_no_verb_is_imported_with_what_its_answer_may_need():
    # Each in a fork, as one would bring what another must not.
    code = (
        f"import importlib, os, sys\nfrom lra.cli import VERBS\n"
        f"heavy = {set(HEAVY) - {'numpy', 'omegaconf'}}\n"
        "for module in map('lra.commands.{}'.format, VERBS):\n"
        "    if os.fork() == 0:\n"
        "        importlib.import_module(module)\n"
        "        print(module, *heavy & {*sys.modules}, flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()"
    )
    assert printed(code) == [f"lra.commands.{verb}" for verb in VERBS]


DOORS = ("lra/commands/", "lra/api/", "lra/__init__.py", "lra/__main__.py", "lra/cli.py")
"""What starts light, and imports the rest when it is needed."""
LATE = {
    ("lra/execution/foreground.py", "lra.results.finish"),  # pandas and matplotlib, at the end
    ("lra/results/score_line.py", "lra.reports.tables.scores"),  # pandas, for runs with a score
    ("lra/cluster/reporting.py", "lra.results.finish"),  # the same
    ("runners/measurement/rates.py", "lra.runners.measurement.device"),  # torch, to measure
    ("runners/measurement/rates.py", "lra.runners.measurement.measure"),  # the same
    ("lra/sweep/cells.py", "lra.models.kernels.session"),  # adapters, where they are wanted
    ("lra/sweep/cells.py", "lra.models.kernels.providers"),  # the same
    ("lra/sweep/identity.py", "lra.models.kernels.providers"),  # the same
    ("tasks/classification/base.py", "lra.tasks.baselines"),  # torch, for baselines alone
    ("tasks/classification/gray.py", "lra.tasks.baselines"),  # the same
}
"""Imports of ours inside functions, beside those of doors."""
LATE_IN_COMPOSITION = 17
"""How many lra/composition has at most."""


def module_of(file):
    """Return the name by which a file of a room is imported."""
    path = file.relative_to(ROOT).with_suffix("")
    names = [*path.parts[path.parts[0] == "lra" :]]
    return ".".join(["lra", *(names if names[-1] != "__init__" else names[:-1])])


def imports_of(module, within="top"):
    """Yield where an import of ours stands (`top`, `types` or `inside` a function), and of what."""
    for node in ast.iter_child_nodes(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lra":
            yield within, node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.FunctionDef):
            yield from imports_of(node, "inside")
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imports_of(node, "types")
        else:
            yield from imports_of(node, within)


def every_import():
    """Yield file, place, module and names of every import of ours."""
    for file in sources("conf", *SHIPPED):
        for place, module, names in imports_of(parsed(file)):
            yield str(file.relative_to(ROOT)), place, module, names


def test_imports_of_ours_stand_at_the_top():
    planted = "import sys\ndef f():\n    if 1:\n        from lra.errors import near\n"
    assert [*imports_of(ast.parse(planted))] == [("inside", "lra.errors", ["near"])]
    inside = {
        (file, module)
        for file, place, module, _ in every_import()
        if place == "inside" and not file.startswith(DOORS)
    }
    composition = {(file, module) for file, module in inside if "lra/composition/" in file}
    assert inside - composition == LATE
    assert len(composition) <= LATE_IN_COMPOSITION


def test_reports_know_of_runners_only_the_rows():
    found = {
        f"{module}.{name}" if module == "lra.runners" else module
        for file, _, module, names in every_import()
        for name in names
        if file.startswith("reports/")
    }
    doors = {"lra.runners.records", "lra.runners.metrics", "lra.runners.store"}
    assert {name for name in found if name.startswith("lra.runners")} <= doors


def test_no_import_hides_a_circle():
    # Also not one in a function, or one for types; the doors may be imported from anywhere.
    graph = {module_of(file): set() for file in sources("conf", *SHIPPED)}
    for file, _, module, names in every_import():
        if file not in DOORS:
            parts = {f"{module}.{name}" for name in names}
            graph[module_of(ROOT / file)] |= (parts & graph.keys()) or {module}
    assert len(graph) > 500
    TopologicalSorter(graph).prepare()


def test_imports_for_types_are_of_a_lower_floor():
    # Of another folder, that is: that this is a lower one is what import-linter checks.
    beside = {
        (file, module)
        for file, place, module, _ in every_import()
        if place == "types"
        and module.rpartition(".")[0] == module_of(ROOT / file).rpartition(".")[0]
    }
    composition = {(file, module) for file, module in beside if "lra/composition/" in file}
    assert beside - composition == set()
    assert len(composition) <= 2


TAKES_APART = frozenset(
    {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "removeprefix",
     "removesuffix", "splitlines"}
)  # fmt: skip
SETS_TEXT = {
    "document", "latex", "latex_tables", "layout", "markup", "scripts", "stems", "table", "words",
}  # fmt: skip
"""Modules of reports that make text of text: mark-up, file names, lines of a figure."""
READS_TEXT = {
    ("labels", "first_position"),  # a label that is stored so
    ("rows", "short"),  # a stored reason, without the place of its log
    ("labels", "names_in"),  # a label that lists names is stored so
    ("names", "_without"),  # the path of an option, of which a name is made
    ("names", "last_words"),  # the same
    ("style", "shipped_families"),  # names of files
    ("runs", "_line_name"),  # the same, and the path of an option
    ("numbers", "further_differences"),  # the path of an option
    ("speeds", "speed_of"),  # the same
    ("rows", "_cost_point"),  # the same
    ("drawing", "legend_name"),  # matplotlib leaves out what begins with an underscore
    ("titles", "_titles"),  # the same
    ("captions", "sentences"),  # a name at the start of a sentence stays as it is
    ("tuning_points", "_range_title"),  # the path of an option
    ("labels", "_start_runs"),  # a key that stands in a stored label
    ("configurations", "cells_json"),  # words of commands, which the page holds once each
    ("searches", "option_name"),  # the path of an option, of which a name is made
    ("searches", "_arm_names"),  # paths of options, and words of which a name is made
    ("best_on_validation", "with_arms"),  # words of which a name is made
    ("mad", "_options_of"),  # the path of an option
    ("ledger", "entry"),  # the same
    ("style", "name"),  # the same
    ("style", "_styled_departures"),  # the same
    ("tuning_points", "_draw_panel"),  # the path of an option
    ("describe", "_search_entries"),  # a place in a search, which is stored so
    ("record", "digits"),  # a number as its source prints it, stored so
    ("record", "value"),  # the same
    ("record", "_figures"),  # lines of a file
    ("record", "read_record"),  # names of files
    ("findings", "_check_column"),  # a number as its source prints it, stored so
}


def taken_apart(module):
    """Return the functions of a module that take a text apart."""
    found = set()
    for function in ast.walk(module):
        for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                expressions = ast.unparse(node.func.value) == "re"
                if node.func.attr in TAKES_APART or expressions:
                    found.add(function.name)
    return found


def test_reports_read_columns_and_no_names():
    # What a name or a number is made of travels beside it: nobody parses what was printed.
    planted = "import re\ndef a(n): return n.partition(' (')\ndef b(n): return re.sub('x', '', n)"
    assert taken_apart(ast.parse(planted + "\ndef c(n): return n.family")) == {"a", "b"}
    found = {
        (file.stem, name)
        for file in sources("reports")
        if file.stem not in SETS_TEXT
        for name in taken_apart(parsed(file))
    }
    assert found == READS_TEXT


def test_no_file_is_long():
    long = [file for file in sources(*ROOMS) if len(file.read_text().splitlines()) > 600]
    assert named(long) == []


def test_every_name_says_something():
    parts = [file for room in ROOMS for file in (ROOT / room).rglob("*")]
    assert named(file for file in parts if file.stem.lower() in MEANINGLESS) == []


def test_class_names_are_unique():
    found = {}
    for file in sources("conf", *SHIPPED):
        for node in parsed(file).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert len(found) > 300, "the classes were not found"
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


PARTICIPLE = re.compile(
    "begun|built|chosen|done|drawn|found|given|gone|held|hidden|kept|known|left|lost|made|own|said|"
    "seen|sent|shown|spelt|spent|taken|told|torn|written|[a-z]+ed"
)
NOUNS = frozenset({"need", "seed", "speed"})
PARTICIPLES_LEFT = {"models": 5, "tasks": 1, "runners": 5, "lra/composition": 7}
"""How many a room has at most, of functions, classes and files; others have none."""
PROTOCOL = frozenset({"main", "parser", "section"})
"""Names that many modules have to have."""


def is_participle(name):
    """Tell whether a name is a participle alone, of which nobody sees what is."""
    return name not in NOUNS and PARTICIPLE.fullmatch(name) is not None


def public_names(file):
    """Yield what a module defines for others; itself first."""
    yield file.stem
    for node in parsed(file).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def test_no_participle_alone_is_a_name():
    names = ("kept", "ranked", "seed", "rank_columns")
    assert [*filter(is_participle, names)] == ["kept", "ranked"]
    found = {}
    for file in sources("conf", *SHIPPED):
        path = str(file.relative_to(ROOT))
        room = next((room for room in PARTICIPLES_LEFT if path.startswith(f"{room}/")), "")
        names = [name for name in public_names(file) if is_participle(name.lower())]
        found.setdefault(room, []).extend(f"{path}: {name}" for name in names)
    assert found.pop("") == []
    counts = {room: len(names) for room, names in found.items()}
    assert all(counts[room] <= PARTICIPLES_LEFT[room] for room in counts), counts


def test_no_function_is_defined_often():
    names = Counter(
        node.name
        for file in sources("conf", *SHIPPED)
        for node in parsed(file).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if name not in PROTOCOL and count > 3] == []


def test_every_module_opens_with_a_docstring():
    silent = [file for file in sources(*SHIPPED, "conf") if not ast.get_docstring(parsed(file))]
    assert named(silent) == []


def test_only_the_front_door_prints():
    loud = []
    for file in sources("models", "tasks", "runners", "reports"):
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                loud.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert loud == []


def test_postponed_annotations_are_not_used():
    # The schema of the configuration and the shape checks read real annotations.
    tardy = [
        file
        for file in sources(*SHIPPED)
        if "from __future__ import annotations" in file.read_text()
    ]
    assert named(tardy) == []


def choices_compared_by_identity(module, choices):
    """Return the lines that ask whether something `is` a choice or not."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Compare):
            sides = [
                side.value
                for side in (node.left, *node.comparators)
                if isinstance(side, ast.Attribute | ast.Subscript)
            ]
            named = choices & {side.id for side in sides if isinstance(side, ast.Name)}
            if named and any(isinstance(how, ast.Is | ast.IsNot) for how in node.ops):
                found.append(node.lineno)
    return found


def test_choices_of_models_are_compared_by_value():
    # The mathematics is called directly as well, where a plain string takes the other branch.
    # Constructors convert what they are given: tasks and runners hold members alone.
    choices = {"KeyMax"}  # made by a call
    for file in sources("models"):
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ClassDef) and "StrEnum" in map(ast.unparse, node.bases):
                choices.add(node.name)
    assert len(choices) > 30
    planted = 'a is Kernel.exp\nb is not KeyMax["global"]\nc == Kernel.exp\nd is None\n'
    assert choices_compared_by_identity(ast.parse(planted), choices) == [1, 2]
    found = {
        str(file.relative_to(ROOT)): choices_compared_by_identity(parsed(file), choices)
        for file in sources("models")
    }
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize("file", sorted((ROOT / "conf").glob("*/*.yaml")), ids=lambda f: f.stem)
def test_a_choice_is_snake_case_and_named_like_its_file(file):
    node = yaml.safe_load(file.read_text())
    assert re.fullmatch(r"[a-z][a-z0-9_]*", file.stem)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", file.parent.name)
    # Groups that write into other nodes (@package) have no node of their own to carry a name.
    if "@package" not in file.read_text().splitlines()[0]:
        assert node["name"] == file.stem
