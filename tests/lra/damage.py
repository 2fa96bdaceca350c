"""Ways in which a file of a store, or of rows, is damaged: each takes its path and a generator."""

import json
import os
import re
import shutil
import socket

HOSTILE = [
    None, True, False, 0, -1, 7, 1.5, 10**30, -(10**400), "", "x", "ok", [], [[]], {}, {"a": 1},
    [None], "é", "\x00", "\ud800", "a\nb", "x" * 5000, "nan", {"split": None}, [1e308, 1e308],
]  # fmt: skip


def text_of(path):
    return path.read_bytes().decode(errors="surrogateescape")


def put(path, text):
    path.write_bytes(text.encode(errors="surrogatepass"))


def truncated(path, random):
    data = path.read_bytes()
    path.write_bytes(data[: random.randrange(len(data))])


def cut_at_a_line(path, random):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: random.randrange(len(lines))]))


def emptied(path, random):
    path.write_bytes(b"")


def zeroed(path, random):
    path.write_bytes(bytes(path.stat().st_size))


def noise(path, random):
    path.write_bytes(random.randbytes(random.randrange(1, 400)))


def flipped(path, random):
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def not_utf8(path, random):
    data = path.read_bytes()
    at = random.randrange(len(data))
    path.write_bytes(data[:at] + b"\xff\xfe" + data[at:])


def byte_order_mark(path, random):
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


def carriage_returns(path, random):
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def blank_line(path, random):
    lines = path.read_bytes().split(b"\n")
    lines.insert(random.randrange(len(lines)), b"")
    path.write_bytes(b"\n".join(lines))


def doubled(path, random):
    path.write_bytes(path.read_bytes() * 2)


def nested(path, random):
    path.write_bytes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n")


def nested_inside(path, random):
    change(path, random, lambda node, key: node.__setitem__(key, chain(200)))


def chain(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def a_folder(path, random):
    path.unlink()
    path.mkdir()


def dangling(path, random):
    path.unlink()
    path.symlink_to("nowhere")


def looping(path, random):
    path.unlink()
    path.symlink_to(path.name)


def pipe(path, random):
    path.unlink()
    os.mkfifo(path)


def a_device(path, random):
    """Without an end."""
    path.unlink()
    path.symlink_to("/dev/zero")


def a_socket(path, random):
    path.unlink()
    folder = os.open(path.parent, os.O_RDONLY)  # the path of a socket may be 107 bytes long
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def sparse(path, random):
    """A terabyte, of which nothing takes room."""
    path.write_bytes(b"")
    os.truncate(path, 1 << 40)


def twice(path, random):
    """Say a key a second time."""
    text = text_of(path)
    at = text.index("{") + 1
    put(path, f'{text[:at]}"twice":1,"twice":2,{text[at:]}')


def another(value):
    def damage(path, random):
        put(path, value)

    damage.__name__ = f"holds {value.strip()}"
    return damage


def change(path, random, act):
    """Apply `act(node, key)` at a random place of the JSON of one line, or of the whole file."""
    text = text_of(path)
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    number = random.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except ValueError:  # damaged before, such as by a number of too many digits
        return
    places = []

    def walk(node):
        keys = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(value)
    act(*random.choice(places))
    lines[number] = json.dumps(value)
    put(path, "\n".join(lines) + "\n")


def a_value(path, random):
    change(path, random, lambda node, key: node.__setitem__(key, random.choice(HOSTILE)))


def a_constant(path, random):
    word = random.choice(["NaN", "Infinity", "-Infinity", "1e999", "1" * 6000])
    change(path, random, lambda node, key: node.__setitem__(key, "§"))
    put(path, text_of(path).replace('"\\u00a7"', word))


def lacking(path, random):
    change(path, random, lambda node, key: node.__delitem__(key))


def besides(path, random):
    change(
        path, random, lambda node, key: node.update(new=1) if isinstance(node, dict) else node.pop()
    )


def newer(path, random):
    put(path, re.sub(r'("schema": ?)\d+', r"\g<1>99", text_of(path), count=1))


def of_another_cell(path, random):
    others = [p for p in path.parents[2].glob(f"*/*/{path.name}") if p != path]
    shutil.copy(random.choice(others), path)


ANY = [
    truncated, emptied, zeroed, noise, flipped, not_utf8, a_folder, dangling, looping, pipe,
    another("null"), another("[]"), another('"text"'), another("{}\n"), another("1\n"),
]  # fmt: skip
"""For a file of any kind."""
JSON = [
    byte_order_mark, carriage_returns, nested, nested_inside, a_value, a_value, a_value, a_constant,
    lacking, besides, doubled,
]  # fmt: skip
ENDLESS = [a_device, a_socket, sparse]
"""What blocks a reader that trusts, or takes all memory."""
ROWS = [cut_at_a_line, blank_line, newer, of_another_cell]
CELL = [newer, of_another_cell]
HARMLESS = {"flipped", "a_value", "a_constant", "lacking", "besides", "carriage_returns", "doubled",
            "nested_inside", "holds {}"}  # fmt: skip
"""Damage that may leave a file sound: another digit, an option of a configuration."""
