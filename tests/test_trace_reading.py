"""Reading a trace: whole ones, ones that end early, and everything that is none, with the line that is at fault."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from rich.console import Console

from engine_runs import all_drafters, finish, toy_engine
from outrider.errors import InvalidOption
from outrider.options import Sampling
from outrider.tracing import reading
from outrider.tracing.page import as_page
from outrider.tracing.reading import EARLY, read_trace
from outrider.tracing.recording import trace
from outrider.tracing.summary import summary
from toy import TableModel

HOSTILE = "</script><script>alert(1)</script> \x1b[31m \u202e & \ud83d"


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """A whole trace of two texts, a line each."""
    path = tmp_path_factory.mktemp("trace") / "t"
    model = TableModel(5, order=1)
    engine = toy_engine(model, all_drafters(model, 2, [])["suffix+model"](), "auto", k=4, slots=2)
    with trace(engine, path, target="a table"):
        for seed in range(2):
            engine.add([1, 2, 1], sampling=Sampling(temperature=1.0), seed=seed, max_new_tokens=14)
        finish(engine)
    return path.read_bytes().splitlines(keepends=True)


def read(tmp_path, lines):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(lines))
    return read_trace(path)


def shown(found):
    console = Console(width=80, color_system=None, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        for content in summary(found):
            console.print(content)
    return captured.get()


def changed(line, *keys, to):
    """A line with one value of it changed, deep inside."""
    record = json.loads(line)
    inner = record
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    return json.dumps(record).encode() + b"\n"


def with_nodes(lines):
    """The place of the last round that has at least two nodes, of which the first was accepted."""
    return max(
        i
        for i, line in enumerate(lines)
        if len((r := json.loads(line)).get("nodes", ())) > 1 and r["nodes"][0]["accepted"]
    )


# ---------------------------------------------------------------- what is read


def test_a_whole_trace_is_read(lines, tmp_path):
    found = read(tmp_path, lines)
    assert found.ending == "finished"
    assert len(found.texts) == 2
    assert sum(len(r.tokens) for r in found.rounds) == 28
    assert sorted(r.line for r in found.rounds) == [
        i for i, line in enumerate(lines, start=1) if line.startswith(b'{"round"')
    ]


def test_a_trace_without_its_last_lines_is_read_as_far_as_it_goes(lines, tmp_path):
    for count in range(1, len(lines)):
        found = read(tmp_path, lines[:count])
        assert found.ending == EARLY
        assert len(found.rounds) == sum(line.startswith(b'{"round"') for line in lines[:count])
        assert "ends early" in shown(found)
        assert "Ends early" in as_page(found)
    assert "ends early" not in shown(read(tmp_path, lines))
    assert "Ends early" not in as_page(read(tmp_path, lines))


def test_a_trace_that_was_cut_anywhere_is_read_up_to_its_last_whole_line(lines, tmp_path):
    whole = b"".join(lines)
    path = tmp_path / "t"
    for end in range(len(lines[0]), len(whole), 97):
        path.write_bytes(whole[:end])
        assert len(read_trace(path).rounds) == sum(
            line.startswith(b'{"round"') and line.endswith(b"\n") for line in whole[:end].splitlines(keepends=True)
        )


def test_a_trace_that_was_cut_in_its_first_line_is_none(lines, tmp_path):
    with pytest.raises(InvalidOption, match=r"line 1'; allowed: a trace"):
        read(tmp_path, [lines[0][:40]])


def test_keys_that_are_new_are_no_fault(lines, tmp_path):
    more = [changed(line, "more", to=[1]) for line in lines]
    assert replace(read(tmp_path, more), about={}, texts=()) == replace(read(tmp_path, lines), about={}, texts=())


# ---------------------------------------------------------------- what is refused


NOT_A_TRACE = {
    "an empty file": (b"", 1, "the file is empty"),
    "text": (b"hello\n", 1, "a trace, whose first line"),
    "bytes": (b"\x80\x81\xff\n\x00", 1, "a trace, whose first line"),
    "a list": (b"[1]\n", 1, "a trace, whose first line"),
    "other JSON": (b'{"a": 1}\n', 1, "a trace, whose first line"),
    "a newer version": (b'{"format": "outrider trace", "version": 2}\n', 1, "version 1 of the format"),
    "no version": (b'{"format": "outrider trace"}\n', 1, "version 1 of the format"),
    "deep nesting": (b"[" * 100_000 + b"\n", 1, "a trace, whose first line"),
    "an endless number": (b'{"format": ' + b"9" * 5000 + b"}\n", 1, "a trace, whose first line"),
}


@pytest.mark.parametrize("name", NOT_A_TRACE)
def test_what_is_no_trace_is_refused(name, tmp_path):
    data, line, words = NOT_A_TRACE[name]
    with pytest.raises(InvalidOption) as refused:
        read(tmp_path, [data])
    assert f"line {line}'; allowed: " in str(refused.value)
    assert words in str(refused.value)


CHANGES = {
    "parent of itself": (("nodes", 1, "parent"), 1, '"parent": a whole number from -1 to 0'),
    "two accepted siblings": (("nodes", 1), "accepted sibling", "one path from the root"),
    "probability of two": (("nodes", 0, "q"), 2, '"q": a number from 0 to 1, or null'),
    "probability in words": (("nodes", 0, "p"), "half", '"p": a number from 0 to 1, or null'),
    "a truth for a number": (("nodes", 0, "token"), True, '"token": a whole number'),
    "a coin that is none": (("nodes", 0, "coin"), [1], '"coin": an object'),
    "another token": (("tokens", 0, "token"), 4_000, "the accepted nodes and then the next token"),
    "a refused node": (("tokens", 0, "node"), 1, "the accepted nodes and then the next token"),
    "a node in the future": (("tokens", 0, "node"), 99, "the accepted nodes and then the next token"),
    "negative seconds": (("seconds", "draft"), -1, '"draft": seconds, 0 or more'),
    "no seconds": (("seconds",), None, '"seconds": an object'),
    "a text that never began": (("text",), 7, "a text that began on an earlier line"),
    "another round": (("round",), 99, "round "),
    "another place": (("place",), 99, "place "),
    "an earlier step": (("step",), 0, "or a later one"),
    "nodes that are none": (("nodes",), [1], '"nodes": a list of objects'),
    "no rule": (("rule",), 1, '"rule": a text'),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_round_is_refused_with_its_line(name, lines, tmp_path):
    keys, value, words = CHANGES[name]
    place = with_nodes(lines)
    if value == "accepted sibling":
        value = json.loads(lines[place])["nodes"][0]
    with pytest.raises(InvalidOption) as refused:
        read(tmp_path, [*lines[:place], changed(lines[place], *keys, to=value), *lines[place + 1 :]])
    assert f"line {place + 1}'; allowed: " in str(refused.value)
    assert words in str(refused.value)


def test_a_line_that_is_missing_twice_or_elsewhere_is_noticed(lines, tmp_path):
    for i in range(1, len(lines) - 1):
        with pytest.raises(InvalidOption):
            read(tmp_path, lines[:i] + lines[i + 1 :])
        with pytest.raises(InvalidOption):
            read(tmp_path, [*lines[: i + 1], lines[i], *lines[i + 1 :]])
    with pytest.raises(InvalidOption, match="nothing after the line that says how the trace ended"):
        read(tmp_path, [*lines, lines[-1]])
    with pytest.raises(InvalidOption, match='a line with "text", "round" or "end"'):
        read(tmp_path, [*lines[:-1], b"{}\n", lines[-1]])
    with pytest.raises(InvalidOption, match='"end": one of finished, stopped, failed'):
        read(tmp_path, [*lines[:-1], changed(lines[-1], "end", to="well")])


def test_sizes_are_bounded(lines, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_LINE", 100)
    with pytest.raises(InvalidOption, match=r"line 1'; allowed: lines of at most 100 bytes"):
        read(tmp_path, lines)
    monkeypatch.undo()
    monkeypatch.setattr(reading, "MAX_LINES", 5)
    with pytest.raises(InvalidOption, match=r"line 6'; allowed: at most 5 lines"):
        read(tmp_path, lines)
    monkeypatch.undo()
    monkeypatch.setattr(reading, "MAX_BYTES", sum(map(len, lines[:3])))
    with pytest.raises(InvalidOption, match=r"line 4'; allowed: at most .* bytes in all"):
        read(tmp_path, lines)


def test_a_file_without_line_ends_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "endless"
    with path.open("wb") as file:
        file.truncate(1 << 33)  # sparse
    with pytest.raises(InvalidOption, match=r"line 1'; allowed: lines of at most"):
        read_trace(path)


def test_what_cannot_be_opened_is_named(tmp_path):
    for path, reason in ((tmp_path / "no", "No such file"), (tmp_path, "Is a directory"), ("a\0b", "null")):
        with pytest.raises(InvalidOption, match=reason):
            read_trace(path, "file")


# ---------------------------------------------------------------- mutants


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.just(10**30),
    st.floats(allow_nan=False),
    st.just(HOSTILE),
    st.just([]),
    st.just({}),
    st.just([{}]),
)


def mutated(data, lines):
    """The lines with some of them changed inside, moved, repeated, cut or garbled."""
    lines = list(lines)
    for _ in range(data.draw(st.integers(1, 3))):
        i = data.draw(st.integers(0, len(lines) - 1))
        how = data.draw(st.sampled_from(["value", "value", "value", "key", "drop", "repeat", "cut", "garble"]))
        if how in ("value", "key"):
            try:
                record = json.loads(lines[i])
            except ValueError:
                continue
            inner = record
            while isinstance(inner, dict | list) and inner:
                key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
                if not isinstance(inner[key], dict | list) or not inner[key] or data.draw(st.booleans()):
                    if how == "value":
                        inner[key] = data.draw(VALUES)
                    else:
                        del inner[key]
                    break
                inner = inner[key]
            lines[i] = json.dumps(record).encode() + b"\n"
        elif how == "drop":
            lines[i] = b""
        elif how == "repeat":
            lines.insert(i, lines[data.draw(st.integers(0, len(lines) - 1))])
        elif how == "cut":
            lines[i] = lines[i][: data.draw(st.integers(0, len(lines[i])))]
        else:
            lines[i] = data.draw(st.binary(max_size=20)) + lines[i]
    return lines


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_mutant_is_read_and_shown_or_refused_with_a_line(data, lines, tmp_path):
    try:
        found = read(tmp_path, mutated(data, lines))
    except InvalidOption as refused:
        event("refused")
        words = str(refused)
    else:
        event("read")
        words = ", line "
        check_shown(found)
    assert ", line " in words


def check_shown(found):
    page = as_page(found)
    assert page.count("</script>") == 2
    assert "\x1b" not in shown(found) + page


def test_texts_are_data_on_a_terminal(lines, tmp_path):
    place = with_nodes(lines)
    spoilt = [
        changed(lines[0], "target", to=HOSTILE),
        *lines[1:place],
        changed(lines[place], "tokens", 0, "text", to=HOSTILE),
        *lines[place + 1 :],
    ]
    text = shown(read(tmp_path, spoilt))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[31m" in text
