"""Formal languages (Delétang et al., arXiv:2207.02098; Beck et al., xLSTM, arXiv:2405.04517).

    1 0 1 1 _          form=places: an input of `length` tokens, then empty places, at which
    . . . . 1          the answers are read; here parity

    3 - 2 × 4 =        form=next: the answer is the next token, and `length` counts it, too;
    . . . . . 0        here modular

`form=places` has the fifteen languages of Delétang et al., which `languages/` explains. Of the
answers to `stack`, `addition` and `multiplication`, those up to the end are asked. `form=next` has
three of them as in xLSTM: in parity, the last bit asks; brackets have no ×, and `length` counts a
padding token. A causal model cannot attend to what follows the question, so rows end there.

A length of which a language has no inputs becomes the next one that has (`modular`: odd ones;
`equation`, `addition`, `multiplication`: 3; `missing_duplicate`: 2). Accuracy counts answers, so
long rows count more; the published score is the mean of the scores of each length from 41 to 500.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows
from lra.tasks.diagnostics.languages import floors
from lra.tasks.diagnostics.languages.catalogue import NEXT, PLACES, Language
from lra.tasks.task import Baseline, Batch
from lra.tasks.tensors import Tensor


class RowForm(StrEnum):
    """Where the answers are: at empty places after the input, or the next token."""

    places = auto()
    next = auto()


@by_name
@dataclass(kw_only=True, eq=False)
class Formal(DiagnosticTask):
    """Answer an input by the rule of a formal language."""

    name: ClassVar[str] = "formal"
    scores: ClassVar[frozenset[str]] = frozenset({"scaled_accuracy"})

    length: int = 40
    min_length: int | None = 1
    language: Language = Language.parity
    """The language; `form=next` has parity, modular and brackets."""
    form: RowForm = RowForm.places
    """Where the answers are: places (empty ones after the input), or next (the next token)."""
    train_examples: int | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        self.besides = 0
        """Tokens of `length` that are not the input."""
        if self.form is RowForm.places:
            self.rule = PLACES[self.language]
        elif self.language in NEXT:
            self.rule, self.besides = NEXT[self.language]
        else:
            raise ValueError(
                f"task.form=next has the languages {', '.join(NEXT)}: got task.language="
                f"{self.language}; choose one of them, or task.form=places"
            )
        self.empty = len(self.rule.symbols)
        """Id of an empty place, or of =."""
        words = [self.language.replace("_", " "), "next tokens" * bool(self.besides)]
        difficulty = ", ".join(filter(None, [*words, self.rule.lengths]))
        self.generated_as(vocabulary=self.empty + (self.besides != 1), difficulty=difficulty)

    def _input(self, length: int) -> int:
        """Return the number of tokens of the input."""
        return length - self.besides

    def _places(self, length: int) -> int:
        """Return the number of tokens after the input."""
        return int(self.besides > 1) if self.besides else self.rule.places(length)

    @property
    def chance(self) -> float:
        """Accuracy of a guess."""
        return self.rule.chance

    def row_size(self, length: int) -> int:
        """Return the number of tokens of the input and its places."""
        return self._input(length) + self._places(length)

    def allowed_length(self, length: int) -> int:
        """Return the next length, from `length` on, of which the language has inputs."""
        return self.rule.allowed(max(1, self._input(length))) + self.besides

    def words(self, length: int) -> int:
        """Return the number of random words for a row."""
        return self.rule.words(self._input(length))

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        inputs, said = self.rule.draw(words, self._input(length))
        places = np.full((len(words), self._places(length)), self.empty)
        tokens = np.hstack((inputs, places))
        answers = np.full_like(tokens, NOT_ASKED)
        answers[:, -said.shape[1] :] = said
        return Rows(tokens, answers)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different inputs."""
        return self.rule.bits(self._input(length))

    def token_text(self, token: int) -> str:
        """Return the symbol of a token, _ for an empty place, or = for that of form=next."""
        return [*self.rule.symbols, "=" if self.besides else "_"][token]

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return the length, as the options count it, for each position of a batch."""
        if not self.varies:
            return {}
        tokens = batch.tokens[:, 0] - self.shift
        inputs = ((tokens >= 0) & (tokens != self.empty)).sum(1, keepdim=True)
        return {"length": (inputs + self.besides).expand(batch.target.shape)}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and those of some languages, on `split`."""
        found = super().baselines(split)
        if self.language is Language.modular:
            guess = floors.by_last_three(self.blocks("train"), self.empty)
            sentence = "This baseline reads only the last three tokens of the input."
            found.append(self.baseline("last_three", split, guess, sentence))
        if self.language in floors.FLOORS:
            name, make, sentence = floors.FLOORS[self.language]
            found.append(self.baseline(name, split, make(self.empty), sentence))
        return found
