"""Garbage from valid examples: bytes changed, JSON values swapped; a seed decides."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from examples import NAMES
from texts import FRAGMENTS

DEEP = 3000  # levels: beyond what readers that call themselves can follow
BRACKETS = [
    *(b"[" * DEEP, b"{" * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    *(b"- " * DEEP, b"? " * DEEP),
]
BYTES = [
    *(b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b"\n", b"\n\n", b"\t", b"\x85"),
    *(b"\xe2\x80\xa8", b"\xed\xa0\x80", b'"', b"'", b",", b":", b": ", b"[", b"]", b"{", b"}"),
    *(b"#", b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system ", b"---\n", b"null", b"true"),
    *(b"NaN", b"Infinity", b"-1", b"0", b"1e999", b".inf", b"2001-99-99", b"9" * 5000),
    *(b"a" * 20000, b"\\ud800", b"%YAML 1.1\n", b"!!binary ", b"!!set ", b"!!int ", b"0b_", b"|\n"),
    *(b">\n", b"\xd9\xa3", b"\xc2\xb2", *BRACKETS),
]
JSON = [  # as they stand in a file
    *("null", "true", "false", "0", "-1", "1", "0.5", "1e999", "-1e999", "NaN", "Infinity"),
    *("1e308", "5e-324", "-0.0", "9" * 5000, "9" * 400, "1" * 19, '""', '" "', '"\\u0000"'),
    *('"\\ud800"', '"\\udfff\\ud800"', '"a\\nb"', '"\\u2028"', '"' + "a" * 20000 + '"'),
    *('"../../etc/passwd"', '"/etc/passwd"', '"[/b]"', '"\u0663"', '"\u00b2"', '"9**9**9"', '"1"'),
    *('"NaN"', "[]", "{}", "[null]", "[[]]", '{"a": 1}', "[1, 2, 3]", "[" * 500 + "]" * 500),
    *("[" * DEEP + "]" * DEEP, '{"a":' * 900 + "1" + "}" * 900, "01", "+1", "1_000", "0x10", "'a'"),
    *("undefined", "--1"),
]


def text(draw: Random) -> str:
    """Fragments that extraction looks for, some in long runs."""
    runs = (1, 1, 1, 1, 2, 50, 600)
    return "".join(
        draw.choice([*FRAGMENTS, chr(draw.randrange(0x11000))]) * draw.choice(runs)
        for _ in range(draw.randrange(12))
    )


def name(draw: Random, root: str) -> str:
    """A name of a task, run, protocol, file: with luck one that leads out of the folder."""
    found = draw.choice(NAMES).replace("{root}", root.lstrip("/"))
    if draw.random() >= 0.7:
        found += draw.choice(["/", "", "\n", "\0", "x"])
        found += draw.choice(NAMES).replace("{root}", root)
    return found


def changed(draw: Random, sound: bytes, others: Sequence[bytes] = ()) -> bytes:
    """The bytes with one to four changes."""
    found = bytearray(sound)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        start, length = draw.randrange(len(found) + 1), draw.choice((0, 1, 4, 30, 400))
        kind = draw.randrange(7)
        if kind == 0 and found:
            for _ in range(draw.choice((1, 1, 8))):
                found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del found[start:]
        elif kind == 2:
            del found[start : start + length]
        elif kind == 3:
            found[start:start] = found[start : start + length] * draw.choice(
                (1, 2, 100 if len(found) < 5000 else 2)
            )
        elif kind == 4 and others:
            found[start:] = draw.choice(others)[start:]
        elif kind == 5:
            found[start : start + length] = draw.randbytes(length)
        else:
            found[start : start + draw.choice((0, length))] = draw.choice(BYTES)
    return bytes(found)


def swapped(draw: Random, sound: Any) -> bytes:
    """JSON of a value of which one to three parts are odd, missing, renamed or there twice."""
    odd: list[str] = []
    found = json.loads(json.dumps(sound))
    for _ in range(draw.choice((1, 1, 2, 3))):
        found = _swap(draw, found, odd)
    written = json.dumps(found)
    for number, token in enumerate(odd):
        written = written.replace(f'"@{number}@"', token)
    return written.encode("utf-8", "surrogatepass")


def _swap(draw: Random, value: Any, odd: list[str]) -> Any:
    if isinstance(value, dict | list) and value and draw.random() < 0.8:
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        kind = draw.random()
        if kind < 0.75:
            value[key] = _swap(draw, value[key], odd)
        elif kind < 0.85 or isinstance(value, list):
            del value[key]
        else:
            value[draw.choice(["", "a\nb", "\ud800", "../x", "id", "extra", key + "x", "\0"])] = (
                value.pop(key)
            )
        return value
    if isinstance(value, str) and draw.random() < 0.3:
        return changed(draw, value.encode("utf-8", "surrogatepass")).decode(
            "utf-8", "surrogateescape"
        )
    odd.append(draw.choice(JSON) if draw.random() < 0.8 else json.dumps(text(draw)))
    return f"@{len(odd) - 1}@"


def kept(draw: Random, share: float, content: bytes) -> bytes:
    """Return the content as it is in a share of the cases, else changed."""
    return content if draw.random() < share else changed(draw, content)


def put(path: str | Path, content: bytes) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)
    return Path(path)


def log_lines(draw: Random) -> bytes:
    row = {"update": 2, "loss": 0.5, "time/update_seconds": 1.0}
    lines = [
        swapped(draw, row) if draw.random() < 0.3 else json.dumps(row).encode() for _ in range(3)
    ]
    found = b"\n".join(lines) + b"\n"
    return found if draw.random() < 0.5 else changed(draw, found)
