"""Text of a trained model on the command line: what is written, where, and what is refused."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lra.cli import main
from lra.commands.generate import condition_of, pieces, speller, trained_model, write_text
from lra.composition.compose import group_file, typed
from lra.errors import CommandError
from lra.runners.store import Store
from lra.sweep.stored_weights import completed_training
from lra.tasks.language.characters import CharacterCorpus, Characters, CharacterSource

WORDS = (
    "task=text8", "task.source=sample", "task.length=16", "model=lstm", "optim.steps=30",
    "optim.warmup_steps=0", "optim.batch_size=8", "optim.peak_learning_rate=0.02",
    "model.backbone.depth=1", "model.backbone.width=32", "model.backbone.positions=none",
    "runner.evaluate_splits=[]", "runner.evaluate_every_steps=0", "logger=none", "report=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train once for all."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRA_DATA", str(folder / "data"))
        assert main(["run", *WORDS, f"results={folder / 'results'}"]) == 0
    return folder / "results"


@pytest.fixture
def generate(results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    (cell,) = results.glob("cells/*/*")
    monkeypatch.setenv("LRA_DATA", str(results.parent / "data"))
    capsys.readouterr()

    def run(*words: str, key: str = cell.name) -> tuple[int, str, str]:
        code = main(["generate", key, "--results", str(results), *words])
        return (code, *capsys.readouterr())

    return run


def test_the_text_goes_to_stdout_and_what_writes_it_to_stderr(generate) -> None:
    code, out, err = generate("--prompt", "ba do", "--tokens", "30", "--greedy")
    assert code == 0
    assert out.startswith("ba do")
    assert len(out) == 5 + 30 + 1
    assert {*out} <= {*" abcdefghijklmnopqrstuvwxyz\n"}
    first, last = err.splitlines()
    assert "lstm on text8 (sample (synthetic)) for 30 steps; each new token is computed" in first
    assert last.startswith("wrote 30 tokens in ")
    assert "tokens/s; reading the prompt of 5 tokens took" in last


def test_greedy_text_is_the_likeliest_token_each_time(generate, results: Path) -> None:
    (cell,) = results.glob("cells/*/*")
    training = completed_training(str(cell), results, "CELL")
    run = training.run()
    model, text = trained_model(run, training.checkpoints), "ba do"
    with torch.no_grad():
        for _ in range(11):  # up to the window
            logits, _ = model.predict(torch.from_numpy(run.task.encode(text)).long()[None, None])
            text += run.task.decode(logits[0, -1].argmax(keepdim=True).numpy())
    assert generate("--prompt", "ba do", "--tokens", "11", "--greedy")[1] == text + "\n"


def test_a_seed_means_the_same_text_and_samples_differ(generate) -> None:
    words = ("--prompt", "ba", "--tokens", "20", "--top-k", "9", "--temperature", "1.5")
    code, out, err = generate(*words, "--samples", "2", "--seed", "7")
    assert code == 0
    one, two = out.splitlines()
    assert one != two
    assert "sample 2 of 2" in err
    assert generate(*words, "--seed", "7")[1] == one + "\n"
    assert generate(*words, "--seed", "8")[1] not in (one + "\n", two + "\n")


def test_prompts_come_from_files_and_from_stdin(generate, tmp_path, monkeypatch) -> None:
    wanted = generate("--prompt", "ba do", "--tokens", "9")[1]
    file = tmp_path / "prompt.txt"
    file.write_text("ba do\n")
    assert generate("--prompt-file", str(file), "--tokens", "9")[1] == wanted
    monkeypatch.setattr("sys.stdin", io.StringIO("ba do\n"))
    assert generate("--tokens", "9")[1] == wanted


def test_a_prompt_longer_than_the_window_is_read_through_the_state(generate) -> None:
    assert generate("--prompt", "ba do " * 20, "--tokens", "3")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--prompt Ba1", "a text for text8 may contain only a to z and blanks: got '1', 'B'"),
        ("--prompt a --temperature 0", "--temperature: got 0.0; wanted a positive finite number"),
        ("--prompt a --temperature nan", "--temperature: got nan; wanted a positive finite number"),
        ("--prompt a --top-p 0", "--top-p: got 0.0; wanted a number above 0"),
        ("--prompt a --top-p 1.1", "--top-p: got 1.1; wanted a number above 0"),
        ("--prompt a --top-k 28", "the vocabulary has only 27 tokens"),
        ("--prompt a --greedy --top-p 0.5", "--top-p 0.5 has no effect"),
        ("--prompt a --greedy --samples 2", "--samples 2 has no effect"),
        ("--prompt=", "the prompt from --prompt is empty"),
        ("--prompt a --prompt-file b", "give only one of them"),
        ("--prompt-file /nowhere/at/all", "No such file"),
    ],
)
def test_what_cannot_be_is_refused(generate, words: str, message: str) -> None:
    code, out, err = generate(*words.split())
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_prompt_that_is_no_text(generate, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "prompt.bin"
    file.write_bytes(b"ab\xff")
    assert "is not UTF-8 text (character 3 is invalid)" in generate("--prompt-file", str(file))[2]
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert "there is no prompt: give --prompt TEXT" in generate()[2]


def test_cells_that_write_nothing_are_named(generate, results: Path, tmp_path: Path) -> None:
    assert "no run" in generate("--prompt", "a", key="zzzz")[2]
    store = Store(results)
    (cell,) = results.glob("cells/*/*")
    weights = next(cell.glob("checkpoint-*/weights.pt"))
    moved = weights.rename(tmp_path / "weights.pt")
    try:
        code, _, err = generate("--prompt", "a")
    finally:
        moved.rename(weights)
    assert code == 2
    assert "which saved no weights; wanted a completed runner=train" in err
    assert store.describe(cell.name)["columns"]["task"] == "text8"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("listops", "has no causal language model, because task=listops trains a model for cl"),
        ("selective_copy", "whose tokens"),
    ],
)
def test_models_that_answer_something_else_are_refused(task, message, results: Path) -> None:
    (cell,) = results.glob("cells/*/*")
    config = {**completed_training(str(cell), results, "CELL").config}
    config["task"] = group_file("task", task)
    with pytest.raises(CommandError, match=message):
        speller(typed(config), "3fa9")


def test_a_condition_is_a_name_or_a_number(results: Path) -> None:
    (cell,) = results.glob("cells/*/*")
    config = {**completed_training(str(cell), results, "CELL").config}
    with pytest.raises(CommandError, match=r"--condition pos: lstm was trained on text8 without"):
        condition_of(typed(config), "pos")
    assert condition_of(typed(config), None) is None
    options = {"source": "sample", "objective": "causal", "class_conditional": True}
    config["task"] = {**group_file("task", "text"), **options}
    run = typed(config)
    assert [condition_of(run, word) for word in ("neg", "pos", "0", "1")] == [0, 1, 0, 1]
    for word in ("2", "-1", "happy"):
        with pytest.raises(CommandError, match=f"--condition {word}: .* 0 to 1, or neg or pos"):
            condition_of(run, word)
    with pytest.raises(CommandError, match="--condition is missing: this model writes text of"):
        condition_of(run, None)


def streamed(task, text: str, tokens: Iterator[int]) -> list[str]:
    return [*pieces(task, task.encode(text), tokens)]


def test_no_character_is_cut_in_two() -> None:
    task = Characters(corpus=CharacterCorpus.enwik8, source=CharacterSource.sample)
    content = "aß€🙂b".encode()
    found = streamed(task, "x", iter(content))
    assert found == ["a", "ß", "€", "🙂", "b"]
    assert streamed(task, "é", iter(content[:8])) == ["a", "ß", "€", "�"]
    assert "".join(streamed(task, "x", iter(b"a\xff\xfe\xfd\xfc\xfbb"))) == "a�����b"


def test_what_joins_words_is_written_with_the_second() -> None:
    class SpeltWords:
        names = ("cat", "saw", "<eos>")

        def encode(self, text: str) -> np.ndarray:
            return np.array([self.names.index(word) for word in text.split()])

        def decode(self, ids: np.ndarray) -> str:
            text = " ".join(self.names[i] for i in ids.tolist())
            return text.replace("<eos> ", "<eos>\n")

    assert streamed(SpeltWords(), "cat", iter([1, 2, 0, 0])) == [" saw", " <eos>", "\ncat", " cat"]


def test_nothing_steers_the_terminal() -> None:
    stream = io.StringIO()
    write_text("a\x1b[2J\tb\n\x00é\x9b", stream)
    assert stream.getvalue() == "a\\x1b[2J\tb\n\\x00é\\x9b"
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    write_text("é🙂", plain)
    assert plain.buffer.getvalue() == b"\\xe9\\U0001f642"
