import subprocess
import sys
from pathlib import Path

import pytest

from lra.runners.storage.fingerprint import (
    digests,
    fingerprint,
    source_digest,
    sources,
)
from lra.runners.storage.parsed_sources import without_comments

ROOT = Path(__file__).parents[3]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small package: top → near → far, and one module that nobody imports."""
    folder = tmp_path / "fp_sample"
    (folder / "sub").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "sub" / "__init__.py").write_text("from .deep import x\n")
    (folder / "sub" / "deep.py").write_text("x = 1\n")
    (folder / "top.py").write_text("import os\nfrom fp_sample import near\n")
    (folder / "near.py").write_text("def f():\n    from . import far\n    import fp_sample.sub\n")
    (folder / "far.py").write_text("import fp_sample.top\n")  # a circle
    (folder / "lonely.py").write_text("y = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_sources_are_found_through_every_form_of_import(package):
    assert set(sources(["fp_sample.top"])) == {
        "fp_sample", "fp_sample.top", "fp_sample.near", "fp_sample.far", "fp_sample.sub",
        "fp_sample.sub.deep",
    }  # fmt: skip


def test_it_changes_with_what_is_reached_and_with_nothing_else(package):
    before = fingerprint(["fp_sample.top"])
    assert len(before) == 12
    (package / "lonely.py").write_text("y = 2\n")
    assert fingerprint(["fp_sample.top"]) == before
    (package / "sub" / "deep.py").write_text("x = 1  # the same\n\n\n# and more\n")
    assert fingerprint(["fp_sample.top"]) == before
    (package / "sub" / "deep.py").write_text("x = 22\n")
    assert fingerprint(["fp_sample.top"]) != before


def test_it_does_not_depend_on_order(package):
    names = ["fp_sample.top", "fp_sample.lonely"]
    assert fingerprint(names) == fingerprint(names[::-1])
    assert fingerprint(names) != fingerprint(names[:1])


def test_moving_code_between_modules_changes_it(package):
    before = fingerprint(["fp_sample.near", "fp_sample.lonely"])
    one, two = (package / "lonely.py").read_text(), (package / "far.py").read_text()
    (package / "lonely.py").write_text(two)
    (package / "far.py").write_text(one)
    assert fingerprint(["fp_sample.near", "fp_sample.lonely"]) != before


def test_other_packages_do_not_count():
    found = sources(["runners.store"])
    assert {"runners.store", "runners.records", "runners.metrics", "runners"} <= set(found)
    assert {name.partition(".")[0] for name in found} <= {"models", "tasks", "runners", "conf"}


def test_a_family_does_not_depend_on_its_siblings():
    found = set(sources(["models.mixer"]))
    below = {f"models.{name}" for name in ("idle", "made_once", "positions", "tuning")}
    assert found == {
        "models",
        "models.mixer",
        "models.options",
        "conf",
        "conf.bounds",
        "conf.choices",
        "conf.short_values",
        *below,
    }


def test_unknown_modules_are_an_error():
    with pytest.raises(
        ModuleNotFoundError, match=r"no source file for the module 'models\.nothing'"
    ):
        fingerprint(["models.nothing"])


def test_nothing_is_imported():
    code = (
        "import sys; from lra.runners.storage.fingerprint import fingerprint;"
        "fingerprint(['models.mixer']);"
        "assert 'models.mixer' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_only_comments_and_blank_lines_are_dropped():
    source = (
        '"""Doc # not a comment.\n\n  # nor this\n"""\n'
        "\n# comment\nx = 1  # one\n\n"
        "y = (\n\n    2,  # two\n    '#', f'{x}#'\n)\n"
        "if x:\n    # indented\n    z = '''a\n\n# b'''\n"
    )
    assert without_comments(source) == (
        '"""Doc # not a comment.\n\n  # nor this\n"""\n'
        "x = 1\ny = (\n    2,\n    '#', f'{x}#'\n)\nif x:\n    z = '''a\n\n# b'''\n"
    )
    exec(compile(without_comments(source), "x", "exec"), {})


@pytest.mark.parametrize(
    "source", ["x = 1", "x = 1  # one", "if x:\n    y = 1\n    # end", "# end"]
)
def test_the_end_of_the_last_line_may_be_missing(source):
    assert without_comments(source) == without_comments(f"{source}\n")


def test_every_source_of_the_house_survives():
    for path in sorted((ROOT / "runners").glob("*.py")):
        compile(without_comments(path.read_text()), path.name, "exec")


def test_a_package_of_theirs_with_a_name_of_ours_is_another(package, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("")
    (tmp_path / "models" / "mine.py").write_text(
        "from models import other\nimport lra.models.state"
    )
    (tmp_path / "models" / "other.py").write_text("x = 1\n")
    (package / "top.py").write_text("from models.mine import x\nfrom lra.models.mixer import y\n")
    own = {"own:models", "own:models.mine", "own:models.other"}
    found = set(sources(["fp_sample.top"]))
    assert own | {"models", "models.mixer", "models.state"} <= found
    assert not own & set(sources(["models.mixer"]))
    before = fingerprint(["fp_sample.top"])
    (tmp_path / "models" / "other.py").write_text("x = 2\n")
    assert fingerprint(["fp_sample.top"]) != before


def test_a_package_without_init_counts(package, tmp_path):
    (tmp_path / "fp_bare" / "sub").mkdir(parents=True)
    (tmp_path / "fp_bare" / "sub" / "mine.py").write_text("from fp_bare import other\n")
    (tmp_path / "fp_bare" / "other.py").write_text("x = 1\n")
    names = ["fp_bare", "fp_bare.sub", "fp_bare.sub.mine", "fp_bare.other"]
    assert set(sources(["fp_bare.sub.mine"])) == set(names)
    found = digests(["fp_bare.sub.mine"])
    assert found == {name: source_digest(name) for name in sorted(names)}
