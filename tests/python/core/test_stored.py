"""The one reader of what was stored: bounded, and every error names its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchtraceap.core import stored
from torchtraceap.errors import MissingFileError, OptionError, SchemaError

HOSTILE = {
    "nothing": b"",
    "cut": b'{"a": [1, 2',
    "another type": b"[1]",
    "a deep list": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a deep list that ends": b'{"a":' + b"[" * 300 + b"]" * 300 + b"}",
    "300 digits": b'{"a": ' + b"9" * 300 + b"}",
    "5,000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "a float beyond all": b'{"a": 1e400}',
    "a key twice": b'{"a": 1, "b": 2, "a": 3}',
    "half a character": b'{"a": "\\ud800"}',
    "half a character as key": b'{"\\udc00": 1}',
    "no UTF-8": b'{"a": "\xff"}',
    "a zero byte": b'{"a": 1}\x00',
    "unclosed text": b'{"a": "' + b'\\"' * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    path = tmp_path / "stored.json"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(SchemaError) as error:
        stored.read_json(path)
    assert str(error.value).startswith(f"{path}: ")
    assert len(str(error.value)) < 400
    path.write_bytes(b'{"a": 1}\n\n' + HOSTILE[name] + b"\n")
    if HOSTILE[name]:
        with pytest.raises(SchemaError, match=rf"^{path}, line 3: "):
            list(stored.read_json_lines(path))


def test_numbers_up_to_64_bits_and_whole_characters_are_read() -> None:
    text = f'{{"a": [{2**63 - 1}, {-(2**63)}, 1.5e308], "b": "\\ud83d\\ude00\u2028"}}'
    assert stored.parse_json(text, "f") == {
        "a": [2**63 - 1, -(2**63), 1.5e308],
        "b": "\U0001f600\u2028",
    }
    assert stored.parse_json(f'{{"a": {2**64}}}', "f", wide=True) == {"a": 2**64}
    with pytest.raises(SchemaError, match="64 bits"):
        stored.parse_json(f'{{"a": {2**63}}}', "f")


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "itself").symlink_to("itself")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path, tmp_path / "itself"):
        for read in (stored.read_json, stored.check_file, stored.hash_file):
            with pytest.raises(SchemaError, match=str(path)):
                read(path)
        with pytest.raises(OptionError, match=str(path)):
            stored.read_toml(path)
    with pytest.raises(MissingFileError, match="gone: no such file"):
        stored.read_json(tmp_path / "gone")
    (tmp_path / "large").write_bytes(b" " * 101)
    with pytest.raises(SchemaError, match="more than 100 bytes"):
        stored.read_stored(tmp_path / "large", most=100)


@pytest.mark.parametrize(
    "text", ["a = [" + "[" * 100_000, "a = " + "9" * 5000, "a", "a = 1\na = 2"]
)
def test_hostile_toml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=f"{path}: is no TOML"):
        stored.read_toml(path)


def test_fields_have_their_types() -> None:
    found = {"a": 1, "b": None, "c": True, "d": 1}
    stored.check_fields(found, {"a": int, "b": (str, type(None)), "c": bool, "d": float}, "f")
    with pytest.raises(SchemaError, match=r"^f: lacks x, y$"):
        stored.check_fields(found, {"a": int, "x": int, "y": int}, "f")
    for name, kind in (("c", int), ("a", bool), ("b", str), ("a", (str, list))):
        with pytest.raises(SchemaError, match=f"^f: {name}: expected "):
            stored.check_fields(found, {name: kind}, "f")


def test_lines_end_where_a_program_ends_them() -> None:
    text = "a\u2028b\x0bc\x0cd\x85e\r\nf\n\ng"
    assert stored.text_lines(text) == ["a\u2028b\x0bc\x0cd\x85e", "f", "", "g"]
    assert stored.text_lines("a\n") == ["a"]
    assert stored.text_lines("") == []
