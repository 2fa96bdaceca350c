"""The formal languages one input at a time, written from their definitions on symbols as text."""


def value(symbols):
    """Evaluate digits, + - × and brackets by descent, modulo 5."""
    left = list(symbols)

    def factor():
        first = left.pop(0)
        if first == "(":
            inside = total()
            assert left.pop(0) == ")"
            return inside
        return -factor() if first == "-" else int(first)

    def term():
        product = factor()
        while left and left[0] == "×":
            left.pop(0)
            product *= factor()
        return product

    def total():
        result = term()
        while left and left[0] in ("+", "-"):
            result += term() if left.pop(0) == "+" else -term()
        return result

    result = total()
    assert left == []
    return result % 5


def even_pairs(symbols):
    text = "".join(symbols)
    pairs = sum(text[i : i + 2] in ("01", "10") for i in range(len(text)))
    return ["0" if pairs % 2 == 0 else "1"]


def parity(symbols):
    return [str(symbols.count("1") % 2)]


def modular(symbols):
    assert all((s in "01234") == (i % 2 == 0) for i, s in enumerate(symbols))
    return [str(value(symbols))]


def cycle(symbols):
    place = 0
    for symbol in symbols:
        place = (place + {"-": 4, ".": 0, "+": 1}[symbol]) % 5
    return [str(place)]


def brackets(symbols):
    return [str(value(symbols))]


def equation(symbols):
    left, equals, right = symbols[:-2], symbols[-2], symbols[-1]
    assert equals == "="
    assert left.count("x") == 1
    place = left.index("x")
    solutions = [
        digit
        for digit in "01234"
        if value([*left[:place], digit, *left[place + 1 :]]) == int(right)
    ]
    assert len(solutions) == 1
    return solutions


def stack(symbols):
    pile = []
    for place, symbol in enumerate(symbols):
        if symbol == "pop":
            pile = pile[:-1]
        else:
            assert symbol.startswith("push") or set(symbols[:place]) <= {"0", "1"}
            pile.append(symbol[-1])
    return [*reversed(pile), "end"]


def reverse(symbols):
    return list(reversed(symbols))


def missing_duplicate(symbols):
    size = len(symbols) // 2
    assert symbols[2 * size :] == ["."] * (len(symbols) % 2)
    hole = symbols.index("?")
    first, second = symbols[:size], symbols[size : 2 * size]
    assert all(a == b for a, b in zip(first, second, strict=True) if "?" not in (a, b))
    return [(second if hole < size else first)[hole % size]]


def duplicate(symbols):
    return symbols + symbols


def odds_first(symbols):
    return [s for i, s in enumerate(symbols, 1) if i % 2 == 0] + [
        s for i, s in enumerate(symbols, 1) if i % 2
    ]


def bucket_sort(symbols):
    return [s for bucket in "01234" for s in symbols if s == bucket]


def lowest_first(symbols):
    return sum(2**i for i, symbol in enumerate(symbols) if symbol == "1")


def computed(symbols, sign):
    place = symbols.index(sign)
    first, second = lowest_first(symbols[:place]), lowest_first(symbols[place + 1 :])
    assert first > 0 < second
    return [*reversed(f"{first + second if sign == '+' else first * second:b}"), "end"]


def addition(symbols):
    return computed(symbols, "+")


def multiplication(symbols):
    return computed(symbols, "×")


def sqrt(symbols):
    number, width = int("".join(symbols), 2), -(-len(symbols) // 2)
    root = max(r for r in range(2**width) if r * r <= number)
    assert number > 0
    return [*f"{root:0{width}b}"]


LITERAL = {
    function.__name__: function
    for function in (
        even_pairs,
        parity,
        modular,
        cycle,
        brackets,
        equation,
        stack,
        reverse,
        missing_duplicate,
        duplicate,
        odds_first,
        addition,
        multiplication,
        sqrt,
        bucket_sort,
    )
}
