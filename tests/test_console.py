"""Output for people, programs and silence."""

import io
import json
import sys

import pytest

from modernize.console import Output, bar, brief, number, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain √d", "plain √d"), ("a\x1b[31mb", "a\\x1b[31mb"), ("a\nb", "a\\nb"), ("\u202e", "\\u202e")],
)
def test_what_cannot_be_printed_is_escaped(text, shown):
    assert printable(text) == shown


def test_what_is_too_long_is_shown_by_its_ends():
    assert brief("a" * 100) == "a" * 100
    assert len(brief("a" * 300_000)) < 2_100
    assert brief("a" * 300_000 + "end").endswith("aend")


def test_json_holds_no_character_that_a_terminal_obeys(capsys):
    hostile = "\x1b[2J\x9b31m\u202e\ud800\n[red]"
    Output(as_json=True).answer({hostile: hostile}, lambda out: None)
    text = capsys.readouterr().out
    assert text.rstrip("\n").isprintable()
    assert json.loads(text)[hostile] == hostile


def test_a_line_keeps_its_blank_lines_and_no_others(capsys):
    Output().line("\na\nb\n")
    assert capsys.readouterr().out == "\na\\nb\n\n"


def test_numbers_are_grouped():
    assert number(1234567) == "1,234,567"


def test_json_is_one_object_and_nothing_else(capsys):
    Output(as_json=True).answer({"a": 1}, lambda out: out.line("human"))
    assert capsys.readouterr().out == '{"schema": 1, "a": 1}\n'


def test_numbers_that_are_none_are_null(capsys):
    Output(as_json=True).answer({"loss": float("inf"), "list": [float("nan"), 1.0]}, lambda out: None)
    assert capsys.readouterr().out == '{"schema": 1, "loss": null, "list": [null, 1.0]}\n'


def test_a_line_for_each_tenth_where_there_is_no_terminal(capsys):
    with Output().progress("step") as advance:
        for i in range(1, 101):
            advance(i, 100, f"loss {i}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "step 10/100  loss 10"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_notice_has_a_line_of_its_own_on_the_screen_that_it_shares_with_a_stream(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    out = Output()
    out.stream("once upon")
    out.note("past token 9")
    out.stream(" a time\n")
    out.note("done")
    assert screen.getvalue() == "once upon\npast token 9\n a time\ndone\n"


def test_a_notice_leaves_a_stream_whole_that_goes_elsewhere(capsys):
    out = Output()
    out.stream("once upon")
    out.note("past token 9")
    out.stream(" a time\n")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("once upon a time\n", "past token 9\n")


def test_what_a_model_writes_cannot_steer_a_terminal_and_is_left_as_it_is_elsewhere(monkeypatch, capsys):
    text = "a\x1b[2J\x9b\r\tb\u3000日\n"
    Output().stream(text)
    assert capsys.readouterr().out == text
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    Output().stream(text)
    assert screen.getvalue() == "a\\x1b[2J\\x9b\\r\tb\u3000日\n"


def test_a_bar_on_a_terminal(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with Output().progress("[/b] \x1b[2J") as advance:
        advance(5, 10, "loss 1.5")
    assert "5/10" in screen.getvalue()
    assert "[/b]" in screen.getvalue()
    assert "\x1b[2J" not in screen.getvalue()
    assert "\x1b[" in screen.getvalue()


def test_a_stage_says_nothing_until_it_takes_long(capsys, monkeypatch):
    """Where there is no terminal: the quick one is silent, and the slow one goes on where it was."""
    clock = iter([0.0, 1.0, 1.5, 2.0, 9.0, 10.0, 10.5, 11.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with Output().stages() as tell:
        tell("reading", 5, 10)  # begun at 0, told at 1
        tell("fitting", 1, 10)  # begun at 1.5, told at 2
        tell("fitting", 2, 10)  # at 9
        tell("fitting", 3, 10, "loss 2")
        tell("fitting", 10, 10, "done")
        tell("fitting", 1, 10)  # begun again at 10, told at 10.5
        tell("reading", 10, 10)  # goes on, at 11
    assert capsys.readouterr().err.splitlines() == [
        "fitting 2/10", "fitting 3/10  loss 2", "fitting 10/10  done", "reading 10/10",
    ]  # fmt: skip


def test_quiet_says_nothing_but_the_answer(capsys):
    out = Output(quiet=True)
    out.note("n")
    out.warnings(["w"])
    with out.progress("step") as advance:
        advance(1, 1)
    out.line("answer")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("answer\n", "")


def test_bars_are_as_long_as_their_values():
    assert [bar(value, 2.0, width=8) for value in (2.0, 1.0, 0.25, 0.3125, 0.0)] == ["█" * 8, "█" * 4, "█", "█▎", ""]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_what_is_no_length_has_no_bar(value):
    assert bar(value, max(value, 2.0)) == bar(1.0, 0.0) == ""
