import os
import subprocess
import sys

import numpy as np
import pytest

from lra import cli
from lra.tasks.errors import BadData, NotPrepared
from tests import lra_process
from tests.lra_process import HOME


def python(code, *, cwd, **variables):
    return lra_process.python("-c", code, cwd=cwd, PYTHONPATH=str(HOME), **variables)


def test_importing_the_program_is_light(tmp_path):
    done = python("import sys, lra.__main__; print(len(sys.modules), *sys.modules)", cwd=tmp_path)
    loaded = set(done.stdout.split())
    assert "lra.__main__" in loaded
    assert not loaded & {"torch", "hydra", "pandas", "numpy", "yaml", "argparse", "lra.cli"}


def test_no_allocator_reserves_what_a_limited_shell_lacks(tmp_path):
    code = "import lra.cli; lra.cli.main(['--version']); "
    code += "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    assert python(code, cwd=tmp_path).stdout.splitlines()[-1] == "system"


def test_without_words_the_help_is_printed_and_the_exit_code_is_two(capsys):
    assert cli.main([]) == 2
    assert "usage: lra VERB" in capsys.readouterr().out


def test_help_names_every_verb_and_the_version_is_printed(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {verb} " in text for verb in cli.VERBS)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lra ")


def test_an_unknown_verb_is_answered_with_the_nearest(capsys):
    assert cli.main(["reprot"]) == 2
    text = capsys.readouterr().err
    assert "unknown verb 'reprot'. Did you mean `lra report`?" in text
    assert "Traceback" not in text


def test_help_of_run_lists_the_choices_and_names_hydras_own_help(capsys):
    assert cli.main(["run", "model=linear", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--hydra-help" in text
    choices = text.partition("names to choose from")[2]
    for first, last in (
        ("model=", "performer"),
        ("hardware=", "h100"),
        ("+experiment=", "quickstart"),
    ):
        assert choices.index(first) < choices.index(f" {last}")
    assert max(map(len, text.splitlines())) <= 100


def fake_verb(monkeypatch, main):
    """Make `lra list` call `main` instead."""
    import lra.commands.list

    monkeypatch.setattr(lra.commands.list, "main", main)


@pytest.mark.parametrize("verb", ["run", "report"])
def test_words_after_the_verb_arrive_untouched(monkeypatch, verb):
    import importlib

    heard = []
    module = importlib.import_module(f"lra.commands.{verb}")
    monkeypatch.setattr(module, "main", lambda argv: heard.append(argv) or 3)
    words = ["-m", "+experiment=quickstart", "model=a,b", "--cfg", "job", "x='{a: 1}'"]
    assert cli.main([verb, *words]) == 3
    assert heard == [words]


def failing(error):
    def main(argv):
        raise error

    return main


@pytest.mark.parametrize(
    "case",
    [
        (NotPrepared("text is not here: lra data prepare text"), "0", 2,
         "lra: text is not here: lra data prepare text\n"),
        (FileNotFoundError(2, "No such file", "/absent"), "0", 2, "lra: No such file: /absent\n"),
        (KeyboardInterrupt(), "0", 130, "interrupted\n"),
        (BadData("line 3 is torn"), "1", 2, "lra: line 3 is torn\n"),
        (KeyError("steps"), "0", 1, "this is a bug"),
    ],
)  # fmt: skip
def test_what_a_verb_raises_is_one_message_and_of_a_bug_its_traceback(case, monkeypatch, capsys):
    error, debug, code, said = case
    fake_verb(monkeypatch, failing(error))
    monkeypatch.setenv("LRA_DEBUG", debug)
    assert cli.main(["list"]) == code
    text = capsys.readouterr().err
    if debug == "1" or code == 1:
        assert "Traceback" in text
        assert said in text
    else:
        assert text == said


def test_a_value_error_from_a_package_is_a_bug_and_from_our_code_a_message(monkeypatch, capsys):
    def main(argv):
        np.zeros(3).reshape(2, 2)

    fake_verb(monkeypatch, main)
    assert cli.main(["list"]) == 1
    assert "Traceback" in capsys.readouterr().err

    from lra.models.mixer import Site

    fake_verb(monkeypatch, lambda argv: Site(width=6, heads=4, max_length=8).head_width)
    assert cli.main(["list"]) == 2
    text = capsys.readouterr().err
    assert text.startswith("lra: heads must divide width")
    assert "Traceback" not in text


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 2 GiB"), RuntimeError("Cannot allocate memory")]
)
def test_too_little_memory_is_no_bug(error, monkeypatch, capsys):
    def main(argv):
        try:
            raise error
        except type(error) as cause:
            raise KeyError("what followed of it") from cause

    fake_verb(monkeypatch, main)
    assert cli.main(["list"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lra: not enough memory ({error}). What was written is safe.")


def test_torch_that_is_not_installed_is_no_bug(monkeypatch, capsys):
    def main(argv):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    fake_verb(monkeypatch, main)
    assert cli.main(["list"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    command = "lra: this command needs torch, which is not installed."
    assert line == f"{command} Install it by: pip install torch"


def test_a_reader_that_left_is_no_error(tmp_path):
    gone, end = os.pipe()
    os.close(gone)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lra", "list"],
            cwd=HOME,
            stdout=end,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(end)
    assert done.stderr == ""
    assert done.returncode == 141


def test_the_end_waits_for_threads_and_runs_exit_functions(tmp_path):
    code = (
        "import atexit, os, sys, threading, time\nfrom lra import __main__, cli\n"
        "class TakenApart:\n    def __del__(self, write=os.write): write(1, b'taken apart')\n"
        "kept = TakenApart()\n"
        "def main(argv):\n"
        "    atexit.register(print, 'exit function')\n"
        "    speak = lambda: (time.sleep(0.2), print('thread'))\n"
        "    threading.Thread(target=speak).start()\n"
        "    print('verb')\n    print('words', file=sys.stderr, end='')\n    return 3\n"
        "cli.main = main\n{around}__main__.main()"
    )
    done = python(code.format(around=""), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "words")
    assert done.stdout.split("\n") == ["verb", "thread", "exit function", ""]
    traced = python(code.format(around="sys.setprofile(lambda *_: None)\n"), cwd=tmp_path)
    assert traced.returncode == 3
    assert traced.stdout.endswith("taken apart")
