"""Turn any text into LaTeX in plain ASCII that every engine prints letter by letter.

Letters with accents and common symbols become commands. Any other character is printed as its
code, for example U+4E2D, so that different names stay different.
"""

import re
import unicodedata
from textwrap import wrap

_PLAIN = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\`{}", '"': "''",
}  # fmt: skip
_SYMBOLS = {
    "†": r"\dag{}",
    "×": r"$\times$", "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$",
    "≠": r"$\neq$", "∞": r"$\infty$", "√": r"$\surd$", "–": "--", "—": "---", "·": r"$\cdot$",
    "…": r"\ldots{}", "−": "$-$", "→": r"$\rightarrow$", "←": r"$\leftarrow$", "°": r"$^\circ$",
    "µ": r"$\mu$", "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ø": r"\o{}", "Ø": r"\O{}",
    "œ": r"\oe{}", "Œ": r"\OE{}", "ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}", "§": r"\S{}",
    "¶": r"\P{}", "©": r"\copyright{}", "£": r"\pounds{}", "“": "``", "”": "''", "‘": "`",
    "’": "'", "\u00a0": "~", "○": r"$\circ$", "◇": r"$\diamond$",
    "•": r"$\bullet$", "∈": r"$\in$", "∑": r"$\sum$",
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u",
    "\u0307": ".", "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0323": "d",
    "\u0327": "c", "\u0331": "b",
}  # fmt: skip
_GREEK = [
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
    *("lambda", "mu", "nu", "xi", "", "pi", "rho", "varsigma", "sigma", "tau", "upsilon", "phi"),
    *("chi", "psi", "omega"),
]
_CAPITALS = {
    "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma",
    "Υ": "Upsilon", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_LETTERS = (
    {chr(code): chr(code) for code in range(32, 127)}
    | _PLAIN
    | _SYMBOLS
    | {letter: rf"$\{name}$" for letter, name in _CAPITALS.items()}
    | {chr(ord("α") + index): rf"$\{name}$" for index, name in enumerate(_GREEK) if name}
)
_SIGNS = {"=", ",", "/", ".", r"\_", ":", ";", ")"}
"""Signs after which a long word may break."""
LONGEST_WORD = 12
"""The most letters of a word without a place at which a line may break."""
_RUNNING = "-,?!'`<>"
"""Letters that LaTeX may join with a neighbour among them into one sign."""
_TOKEN = re.compile(
    r"\$[^$]*\$|\\[A-Za-z]+\{\}|\\[^A-Za-z]\{[^}]*\}|\\[A-Za-z]\{[^}]*\}|\\.|\{\}|."
)


_OPTION = re.compile(r" \((?:hardware|model|optim|runner|task)(?:\.\w+)+\)")
"""The name of an option after a reason. It helps users of lra, but not readers of a paper."""


def prose(text: str) -> str:
    """Return a caption or a note as LaTeX, without names of options; long words may break."""
    return breakable(escape_latex(_OPTION.sub("", text)))


def escape_latex(text: str) -> str:
    """Return `text` as one line of LaTeX that prints its letters.

    A bracket or a star at the beginning gets `{}` before it, because LaTeX would otherwise read it
    as an option of the line break before it.
    """
    plain = " ".join(text.split())
    pieces: list[str] = []
    for letter in unicodedata.normalize("NFC", plain):
        piece = _escape_letter(letter)
        # LaTeX joins two hyphens or two quotes into another sign, so {} separates them.
        would_join = pieces and piece[0] in _RUNNING and pieces[-1][-1] in _RUNNING
        pieces.append("{}" + piece if would_join else piece)
    escaped = "".join(pieces)
    return "{}" + escaped if escaped[:1] in {"[", "*"} else escaped


def _escape_letter(letter: str) -> str:
    """Return LaTeX that prints one letter, or its code for a letter without a command."""
    return _LETTERS.get(letter) or _escape_composed(letter) or f"U+{ord(letter):04X}"


def _escape_composed(letter: str) -> str:
    """Return LaTeX for a letter with an accent, a superscript or a subscript; "" for others."""
    parts = unicodedata.normalize("NFD", letter)
    base, marks = parts[0], parts[1:]
    if len(marks) == 1 and base.isascii() and base.isalpha() and marks[0] in _ACCENTS:
        # 92 is the backslash: \i and \j are the letters without dots, which an accent replaces.
        return rf"\{_ACCENTS[marks[0]]}{{{rf'{chr(92)}{base}' if base in 'ij' else base}}}"
    shape, _, code = unicodedata.decomposition(letter).partition(" ")
    sign = {"<super>": "^", "<sub>": "_"}.get(shape)
    if sign and " " not in code and (raised := chr(int(code, 16))).isascii() and raised.isalnum():
        return rf"${sign}{{\mathrm{{{raised}}}}}$"
    return ""


def breakable(escaped: str) -> str:
    r"""Return escaped text with `\allowbreak` in long words: after signs, or every few letters.

    A line then breaks without a hyphen, which would look like a part of a name.
    """

    def break_word(match: re.Match[str]) -> str:
        """Return a word with places to break after signs, or every `LONGEST_WORD` letters."""
        word = match[0]
        if len(word) <= LONGEST_WORD:
            return word
        tokens = _TOKEN.findall(word)
        parts, letters_since_break = [], 0
        for token in tokens:
            parts.append(token)
            letters_since_break += 1
            after_sign = letters_since_break > 2 and token in _SIGNS
            if letters_since_break >= LONGEST_WORD or after_sign:
                parts.append(r"\allowbreak{}")
                letters_since_break = 0
        return "".join(parts)

    return re.sub(r"[^ ]+", break_word, escaped)


def stack_heading(text: str, width: int) -> tuple[str, int]:
    """Return a heading in lines of about `width` letters, and the letters of the longest line."""
    lines = wrap(" ".join(text.split()), width) or [""]
    widest = max(map(len, lines))
    escaped = [escape_latex(line) for line in lines]
    if len(lines) == 1:
        return escaped[0], widest
    return r"\shortstack[r]{" + r"\\".join(escaped) + "}", widest
