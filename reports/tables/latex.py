"""Any text as LaTeX that every engine reads: plain ASCII, in which no letter acts as a command.

Letters with accents and common symbols become commands; of all other characters the code
is printed, as in U+4E2D, so that different names stay different.
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
LONGEST_WORD = 12
"""Letters without a place to break at."""
_RUNNING = "-,?!'`<>"
_TOKEN = re.compile(
    r"\$[^$]*\$|\\[A-Za-z]+\{\}|\\[^A-Za-z]\{[^}]*\}|\\[A-Za-z]\{[^}]*\}|\\.|\{\}|."
)


_OPTION = re.compile(r" \((?:hardware|model|optim|runner|task)(?:\.\w+)+\)")
"""The option behind a reason, which tells those who run the program what to change."""


def prose(text: str) -> str:
    """Return a caption or a note as LaTeX whose long words may break, without names of options."""
    return breakable(escape_latex(_OPTION.sub("", text)))


def escape_latex(text: str) -> str:
    """Return `text` as LaTeX prints it letter by letter, whatever it holds; one line.

    After a line break, a bracket or a star at the beginning of a cell would be its option.
    """
    plain = " ".join(text.split())
    pieces: list[str] = []
    for letter in unicodedata.normalize("NFC", plain):
        piece = _letter(letter)
        # two hyphens, quotes or the like would run together into another sign
        joined = pieces and piece[0] in _RUNNING and pieces[-1][-1] in _RUNNING
        pieces.append("{}" + piece if joined else piece)
    escaped = "".join(pieces)
    return "{}" + escaped if escaped[:1] in {"[", "*"} else escaped


def _letter(letter: str) -> str:
    return _LETTERS.get(letter) or _composed(letter) or f"U+{ord(letter):04X}"


def _composed(letter: str) -> str:
    """Return a letter with an accent, or a raised or lowered one; nothing for any other."""
    parts = unicodedata.normalize("NFD", letter)
    base, marks = parts[0], parts[1:]
    if len(marks) == 1 and base.isascii() and base.isalpha() and marks[0] in _ACCENTS:
        return rf"\{_ACCENTS[marks[0]]}{{{rf'{chr(92)}{base}' if base in 'ij' else base}}}"
    shape, _, code = unicodedata.decomposition(letter).partition(" ")
    sign = {"<super>": "^", "<sub>": "_"}.get(shape)
    if sign and " " not in code and (raised := chr(int(code, 16))).isascii() and raised.isalnum():
        return rf"${sign}{{\mathrm{{{raised}}}}}$"
    return ""


def breakable(escaped: str) -> str:
    r"""Allow line breaks in long words of escaped text: after signs, else every few letters.

    Names gain no hyphens that are not theirs.
    """

    def opened(match: re.Match[str]) -> str:
        word = match[0]
        if len(word) <= LONGEST_WORD:
            return word
        tokens = _TOKEN.findall(word)
        parts, since = [], 0
        for token in tokens:
            parts.append(token)
            since += 1
            if since >= LONGEST_WORD or (since > 2 and token in _SIGNS):
                parts.append(r"\allowbreak{}")
                since = 0
        return "".join(parts)

    return re.sub(r"[^ ]+", opened, escaped)


def stack_heading(text: str, width: int) -> tuple[str, int]:
    """Return a heading in lines of about `width` letters, and the letters of the longest one."""
    lines = wrap(" ".join(text.split()), width) or [""]
    widest = max(map(len, lines))
    escaped = [escape_latex(line) for line in lines]
    if len(lines) == 1:
        return escaped[0], widest
    return r"\shortstack[r]{" + r"\\".join(escaped) + "}", widest
