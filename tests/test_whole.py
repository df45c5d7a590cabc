"""Outputs are there whole or not at all, and the same bytes each time, whatever happens while they are written."""

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from modernize import whole
from modernize.errors import BadData, OutputRefused
from modernize.plot import plot_losses
from modernize.resume import RunFile
from modernize.runtimes import folder as folders
from modernize.text import encode_file
from modernize.tokenizer import BytesTokenizer
from modernize.whole import SLICE, aside_of, clear_leftovers, write_whole
from modernize.write import write_streamed, write_tensors

PART = r"\.out\.[0-9a-f]{8}\.part"
root = os.geteuid() == 0


@pytest.fixture
def out(tmp_path):
    """A path in a folder of its own."""
    (tmp_path / "in").mkdir()
    return tmp_path / "in" / "out"


def names(path):
    return sorted(entry.name for entry in path.parent.iterdir())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def part_of(path):
    (found,) = path.parent.glob(".*.part")
    return found


def meanwhile(*actions, before=b"new ", after=b"bytes"):
    """Parts of a file; what is done between the two."""
    yield before
    for action in actions:
        action()
    yield after


def never():
    pytest.fail("a part was asked for")
    yield b""


@contextlib.contextmanager
def child(*arguments):
    """A Python that goes when the test does, however that ends."""
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def refused(path, parts, match):
    with pytest.raises(OutputRefused, match=match) as found:
        write_whole(path, parts)
    return found.value


# ------------------------------------------------------------------------------------------ bytes


def test_parts_follow_each_other_whatever_their_size(out):
    sizes = (0, 1, SLICE - 1, SLICE, SLICE + 1, 3 * SLICE + 7, 0, 5)
    made = np.random.default_rng(0)
    parts = [made.bytes(size) for size in sizes]
    mixed = [np.frombuffer(part, np.uint8) if i % 2 else part for i, part in enumerate(parts)]
    write_whole(out, iter([*mixed, np.arange(9, dtype=np.uint16)]))
    assert out.read_bytes() == b"".join(parts) + np.arange(9, dtype=np.uint16).tobytes()
    assert names(out) == ["out"]


def test_nothing_at_all_is_an_empty_file(out):
    write_whole(out, [])
    assert out.read_bytes() == b""


@pytest.mark.parametrize("at", [0, 1, SLICE + 5, 2 * SLICE + 99])
def test_every_slice_is_read_back(out, monkeypatch, at):
    """A disk that changes one bit."""

    class Damaging(io.FileIO):
        def write(self, piece):
            raw = bytearray(piece)
            if 0 <= at - self.tell() < len(raw):
                raw[at - self.tell()] ^= 1
            return super().write(raw)

    out.write_bytes(b"old")
    monkeypatch.setattr(whole, "FileIO", Damaging)
    refused(out, [bytes(2 * SLICE + 100)], "was not written as it is")
    assert (names(out), out.read_bytes()) == (["out"], b"old")


def test_what_does_not_come_back_is_not_written(out, monkeypatch):
    class Forgetting(io.FileIO):
        def readinto(self, room):
            return super().readinto(memoryview(room)[: len(room) // 2]) if len(room) > 8 else 0

    monkeypatch.setattr(whole, "FileIO", Forgetting)
    refused(out, [bytes(100)], "was not written as it is")


def test_a_system_that_takes_and_gives_little_at_once(out, monkeypatch):
    class Slow(io.FileIO):
        def write(self, piece):
            return super().write(piece[:1000])

        def readinto(self, room):
            return super().readinto(room[:999])

    monkeypatch.setattr(whole, "FileIO", Slow)
    content = np.random.default_rng(1).bytes(10_000)
    write_whole(out, [content])
    assert out.read_bytes() == content


def test_the_size_is_checked_in_the_end(out):
    def grow():
        with part_of(out).open("r+b") as stream:
            stream.seek(1000)
            stream.write(b"!")

    refused(out, meanwhile(grow), "has 1001 bytes and not 9")
    assert names(out) == []


def test_it_is_on_the_disk_before_it_gets_its_name(out, monkeypatch):
    events = spied(monkeypatch)
    write_whole(out, [b"new"])
    assert events.index("file") < events.index("renamed")


def test_its_name_is_on_the_disk_in_the_end(out, monkeypatch):
    events = spied(monkeypatch)
    write_whole(out, [b"new"])
    assert events[-2:] == ["renamed", "folder"]


def spied(monkeypatch):
    events, sync, rename = [], os.fsync, Path.replace

    def fsync(descriptor):
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def replace(self, target):
        events.append("renamed")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    return events


def test_a_folder_that_cannot_be_synced_is_no_harm(out, monkeypatch):
    sync = os.fsync

    def files_alone(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", files_alone)
    write_whole(out, [b"new"])
    assert out.read_bytes() == b"new"


def test_it_is_written_aside_in_the_same_folder(out, monkeypatch, tmp_path):
    """So also with another folder to work in, where a rename could not be made at once."""
    monkeypatch.chdir(tmp_path)
    found = []
    write_whole(out, meanwhile(lambda: found.extend(names(out))))
    (name,) = found
    assert re.fullmatch(PART, name)


def test_no_more_than_one_part_is_held(out):
    size, count = 8 << 20, 6
    tracemalloc.start()
    try:
        write_whole(out, (np.full(size, i, np.uint8) for i in range(count)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.stat().st_size == size * count
    assert peak < size + 4 * SLICE


# ------------------------------------------------------------------------------------------ tensors


STATE = {
    "a": torch.arange(12.0).reshape(4, 3),
    "none": torch.zeros(0, 5),
    "b": torch.arange(6).reshape(2, 3).to(torch.bfloat16),
    "c": torch.arange(3),
}
ROWS = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in STATE.items()} | {"b": ((2, 3), "bfloat16")}


def test_a_file_is_the_same_in_pieces(out):
    write_tensors(out, STATE, {"format": "pt"})
    pieces = (piece for tensor in STATE.values() for piece in tensor.split(1))
    write_streamed(out.with_name("other"), ROWS, pieces, {"format": "pt"})
    assert out.read_bytes() == out.with_name("other").read_bytes()
    found = load_file(out)
    assert all(torch.equal(found[name], tensor) for name, tensor in STATE.items())


@pytest.mark.parametrize(
    "change",
    [
        lambda pieces: pieces[:-1],
        lambda pieces: [*pieces, torch.zeros(1)],
        lambda pieces: [pieces[0][:3], *pieces[1:]],
        lambda pieces: [torch.zeros(5, 3), *pieces[1:]],
        lambda pieces: [pieces[0].double(), *pieces[1:]],
        lambda pieces: [torch.zeros(4, 3, dtype=torch.int32), *pieces[1:]],
    ],
    ids=["too few", "too many", "too short", "too long", "too wide", "another dtype"],
)
def test_pieces_that_are_not_what_was_told_are_a_bug(out, change):
    out.write_bytes(b"old")
    with pytest.raises(ValueError, match=r"more pieces|there is"):
        write_streamed(out, ROWS, change(list(STATE.values())), {})
    assert (names(out), out.read_bytes()) == (["out"], b"old")


def test_a_piece_is_gone_before_the_next_is_made(out):
    before = []

    def pieces():
        for _ in range(4):
            assert not before or before[-1]() is None
            memory = np.zeros((1, 8), np.float32)
            before.append(weakref.ref(memory))
            made = torch.from_numpy(memory)
            del memory
            yield made
            del made

    write_streamed(out, {"a": ((2, 8), torch.float32), "b": ((2, 8), torch.float32)}, pieces(), {})
    assert len(before) == 4


# ------------------------------------------------------------------------------------------ modes


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077])
def test_a_new_file_gets_the_mode_of_the_umask(out, umask):
    before, found = os.umask(umask), []
    try:
        write_whole(out, meanwhile(lambda: found.append(mode(part_of(out)))))
    finally:
        os.umask(before)
    assert mode(out) == 0o666 & ~umask
    assert not found[0] & ~mode(out)


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("kept", [0o600, 0o640, 0o644, 0o444, 0o664, 0o755])
def test_a_file_that_is_replaced_hands_on_its_mode(out, kept, umask):
    out.write_bytes(b"old")
    out.chmod(kept)
    before, found = os.umask(umask), []
    try:
        write_whole(out, meanwhile(lambda: found.append(mode(part_of(out)))))
    finally:
        os.umask(before)
    assert (mode(out), out.read_bytes()) == (kept, b"new bytes")
    assert not found[0] & ~kept  # never open to more than the file was


def test_what_was_granted_to_other_bytes_is_not_handed_on(out):
    out.write_bytes(b"old")
    out.chmod(0o6755)
    write_whole(out, [b"new"])
    assert mode(out) == 0o755


def test_a_file_that_was_closed_meanwhile_stays_closed(out):
    out.write_bytes(b"old")
    out.chmod(0o644)
    write_whole(out, meanwhile(lambda: out.chmod(0o600)))
    assert mode(out) == 0o600


@pytest.mark.skipif(not root, reason="only root gives files away")
def test_the_group_is_kept_or_its_rights_are_not(out, monkeypatch):
    for kept, lost in ((0o640, 0o600), (0o664, 0o644)):
        out.write_bytes(b"old")
        os.chown(out, -1, 54321)
        out.chmod(kept)
        write_whole(out, [b"new"])
        assert (out.stat().st_gid, mode(out)) == (54321, kept)
        with monkeypatch.context() as patch:
            patch.setattr(os, "chown", lambda *_: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
            write_whole(out, [b"new"])
        assert (out.stat().st_gid != 54321, mode(out)) == (True, lost)
        out.unlink()


# ------------------------------------------------------------------------------------------ links and other kinds


@pytest.mark.parametrize("there", [True, False], ids=["old", "dangling"])
@pytest.mark.parametrize("links", [["../in/out"], ["{out}"], ["second", "third", "../in/out"]], ids=str)
def test_a_link_is_written_through(out, tmp_path, links, there):
    (tmp_path / "links").mkdir()
    at = ["first", *links[:-1]]
    for name, to in zip(at, links, strict=True):
        (tmp_path / "links" / name).symlink_to(to.format(out=out))
    if there:
        out.write_bytes(b"old")
    seen = []
    write_whole(tmp_path / "links" / "first", meanwhile(lambda: seen.append(part_of(out).name)))
    assert out.read_bytes() == b"new bytes"
    assert (len(seen), names(out), names(tmp_path / "links" / "x")) == (1, ["out"], sorted(at))
    assert all((tmp_path / "links" / name).is_symlink() for name in at)


@pytest.mark.parametrize("length", [1, 2, 60])
def test_links_that_go_round_are_refused(run, nano, out, length):
    """Also a chain that is longer than the system follows."""
    for i in range(length):
        out.with_name(f"{i}.safetensors").symlink_to(f"{(i + 1) % (length if length < 9 else 99)}.safetensors")
    start = out.with_name("0.safetensors")
    refused(start, never(), "goes round")
    found = run("convert", nano, start, "--force")
    assert (found.code, "goes round" in found.err) == (4, True)
    assert len(names(out)) == length


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "device", "full device"])
def test_only_regular_files_are_written(run, tmp_path, monkeypatch, kind):
    """Refused before any work and never opened, as it is and behind a link."""
    monkeypatch.chdir(tmp_path)
    odd = Path("odd.safetensors")
    with contextlib.ExitStack() as stack:
        if kind == "folder":
            odd.mkdir()
        elif kind == "pipe":
            os.mkfifo(odd)
        elif kind == "socket":
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(odd))
        else:
            odd.symlink_to("/dev/full" if kind == "full device" else "/dev/null")
        Path("link.safetensors").symlink_to(odd)
        before = odd.stat()
        for name in (odd, Path("link.safetensors")):
            refused(name, never(), f"is a {kind.split()[-1]}, not a regular file")
            found = run("convert", tmp_path / "not even there.pt", name, "--force")
            assert (found.code, "not a regular file" in found.err) == (4, True)
        assert stat.S_IFMT(odd.stat().st_mode) == stat.S_IFMT(before.st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.safetensors", "odd.safetensors"]


@pytest.mark.parametrize("kind", ["folder", "full folder", "pipe", "link"])
def test_what_came_there_meanwhile_stays(out, kind):
    out.write_bytes(b"old")

    def other():
        out.unlink()
        if kind == "pipe":
            os.mkfifo(out)
        elif kind == "link":
            out.symlink_to("elsewhere")
        else:
            out.mkdir()
        if kind == "full folder":
            (out / "thesis.tex").write_text("years of work")

    refused(out, meanwhile(other), "not a regular file")
    assert names(out) == ["out"]
    assert not stat.S_ISREG(out.lstat().st_mode)


def test_a_folder_that_vanishes_is_a_sentence(out):
    refused(out, meanwhile(lambda: shutil.rmtree(out.parent)), "No such file or directory")
    assert not out.parent.exists()


@pytest.mark.parametrize("name", ["no/out", "file/out", "a\0b", "\ud800", "x" * 256])
def test_names_that_cannot_be_are_refused_before_any_work(out, name):
    out.with_name("file").write_bytes(b"mine")
    refused(out.with_name("x").parent / name, never(), "cannot be written|has no name")
    assert names(out) == ["file"]


def test_a_link_into_no_folder_names_that_folder(run, nano, out):
    link = out.with_name("link.safetensors")
    link.symlink_to("../gone/new.safetensors")
    found = run("convert", nano, link)
    assert (found.code, f"no folder {out.parent.parent / 'gone'}" in found.err) == (4, True)


@pytest.mark.skipif(root, reason="root may write anywhere")
def test_a_folder_that_is_sealed_meanwhile(out):
    out.write_bytes(b"old")
    try:
        refused(out, meanwhile(lambda: out.parent.chmod(0o555)), "Permission denied")
        assert out.read_bytes() == b"old"
    finally:
        out.parent.chmod(0o755)


# ------------------------------------------------------------------------------------------ leftovers


def test_what_a_killed_run_left_goes(out):
    for i in range(3):
        out.with_name(f".out.0123456{i}.part").write_bytes(b"half")
    write_whole(out, [b"new"])
    assert names(out) == ["out"]


def test_only_names_of_ours_go_and_only_files(out):
    odd = ("0123456", "012345678", "0123456G", "x.01234567")
    near = [*(f".out.{mark}.part" for mark in odd), ".out.01234567.part~", "out.01234567.part", ".Xout.01234567.part"]
    near += [".ou.01234567.part", ".out.01234567.old"]
    for name in near:
        out.with_name(name).write_bytes(b"mine")
    out.with_name(".out.aaaaaaaa.part").mkdir()
    out.with_name(".out.bbbbbbbb.part").symlink_to(near[0])
    os.mkfifo(out.with_name(".out.cccccccc.part"))
    write_whole(out, [b"new"])
    assert names(out) == sorted([*near, "out", *(f".out.{8 * c}.part" for c in "abc")])


def test_dots_and_stars_in_a_name_are_letters(out):
    odd = out.with_name("a.*[b]")
    for name in (".a.*[b].01234567.part", ".a.xb.01234567.part"):
        out.with_name(name).write_bytes(b"half")
    write_whole(odd, [b"new"])
    assert names(out) == [".a.xb.01234567.part", "a.*[b]"]


def test_two_runs_at_once_both_end_whole(out):
    """The second begins and ends while the first writes; the last to end is there."""
    seen = []

    def second():
        write_whole(out, [b"second"])
        seen.append(out.read_bytes())
        seen.append(len(list(out.parent.glob(".out.*.part"))))

    write_whole(out, meanwhile(second))
    assert seen == [b"second", 1]
    assert (names(out), out.read_bytes()) == (["out"], b"new bytes")


def test_another_process_keeps_its_part(out):
    held = out.with_name(".out.01234567.part")
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    with child("-c", code, held) as process:
        assert process.stdout.readline() == b"\n"
        write_whole(out, [b"new"])
        assert names(out) == [held.name, "out"]
    write_whole(out, [b"new"])
    assert names(out) == ["out"]


def test_a_part_that_is_taken_before_it_is_locked_is_made_again(out, monkeypatch):
    lock, taken = fcntl.flock, []

    def late(descriptor, how):
        if how == fcntl.LOCK_EX and not taken:
            taken.append(part_of(out))
            clear_leftovers(out)
            assert names(out) == []
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    write_whole(out, [b"new"])
    assert (names(out), out.read_bytes(), len(taken)) == (["out"], b"new", 1)


def test_a_part_that_got_its_name_meanwhile_is_not_removed(out, monkeypatch):
    """Its writer renames it, and another one has the name of the part, between a look and the lock."""
    part, lock = out.with_name(".out.01234567.part"), fcntl.flock
    part.write_bytes(b"first")

    def late(descriptor, how):
        if how != fcntl.LOCK_EX and not out.exists():
            part.rename(out)
            part.write_bytes(b"second")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    clear_leftovers(out)
    assert (out.read_bytes(), part.read_bytes()) == (b"first", b"second")


def test_without_locks_only_what_is_a_day_old_goes(out, monkeypatch):
    def none(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    fresh, stale = (out.with_name(f".out.{8 * c}.part") for c in "ab")
    for path, age in ((fresh, 3600), (stale, 2 * 24 * 3600)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    write_whole(out, [b"new"])
    assert (names(out), out.read_bytes()) == ([fresh.name, "out"], b"new")


@pytest.mark.parametrize(
    "name", ["x" * 255, "é" * 127, "日" * 85, "x" * 241, "x" * 242], ids=lambda name: f"{len(name)} {name[0]}"
)
def test_long_names_have_room_for_a_part(out, name):
    """And each its own: two that begin alike don't take each other's parts."""
    out, other = out.with_name(name), out.with_name(name[:-1] + "y")
    left, others = aside_of(out), aside_of(other)
    assert len(os.fsencode(left.name)) <= 255
    for path in (left, others):
        path.write_bytes(b"half")
    write_whole(out, [b"new"])
    assert names(out) == sorted([others.name, name])


def test_a_saved_run_that_is_over_leaves_nothing(out):
    saved = RunFile(out, {})
    saved.save({"a": torch.zeros(3)}, {"done": 1})
    out.with_name(".out.01234567.part").write_bytes(b"half")
    saved.remove()
    assert names(out) == []


# ------------------------------------------------------------------------------------------ interrupts


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, BadData("no", hint="no"), OSError(5, "of the input")])
@pytest.mark.parametrize("there", [True, False])
def test_whatever_the_parts_raise_comes_through_and_leaves_nothing(out, error, there):
    if there:
        out.write_bytes(b"old")

    def parts():
        yield bytes(3 * SLICE)
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        write_whole(out, parts())
    assert names(out) == ["out"] * there
    assert not there or out.read_bytes() == b"old"


WAITING = """
import signal, sys, typer
from pathlib import Path
from modernize.boundary import run
from modernize.whole import write_whole

def parts():
    yield bytes(1 << 20)
    print("writing", flush=True)
    signal.pause()

def command():
    write_whole(Path(sys.argv[1]), parts())

app = typer.Typer()
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(command)
run(app)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda sent: sent.name)
def test_a_signal_leaves_the_old_file_and_nothing_else(out, sent):
    out.write_bytes(b"old")
    with child("-c", WAITING, out) as process:
        assert process.stdout.readline() == b"writing\n"
        assert len(names(out)) == 2
        process.send_signal(sent)
        assert process.wait(timeout=60) == 128 + sent
    assert (names(out), out.read_bytes()) == (["out"], b"old")


def test_nohup_is_heeded(out):
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + WAITING.replace(
        "signal.pause()", "signal.raise_signal(signal.SIGHUP)"
    )
    subprocess.run([sys.executable, "-c", code, str(out)], check=True, stdout=subprocess.PIPE)
    assert out.stat().st_size == 1 << 20


# ------------------------------------------------------------------------------------------ a full disk


@contextlib.contextmanager
def limited(size):
    """No file may grow past a size, as `ulimit -f` says it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def long_text(path):
    text = path.with_name("text")
    text.write_text("a line of text\n" * 10_000)
    return text


ROWS_OF_A_LOG = (
    {"event": "started", "before": 3.0, "old": 1.0},
    {"event": "stepped", "step": 1, "loss": 2.0},
    {"event": "validated", "step": 1, "loss": 2.0},
)
WRITERS = {
    "tensors": lambda path: write_tensors(path, {"a": torch.zeros(1000, 1000)}, {}),
    "a run": lambda path: RunFile(path, {}).save({"a": torch.zeros(1000, 1000)}, {"done": 1}),
    "a plot": lambda path: plot_losses(ROWS_OF_A_LOG, path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_is_an_output_that_is_refused(out, write):
    out.write_bytes(b"old")
    if write is WRITERS["a plot"]:
        pytest.importorskip("matplotlib")
    with limited(5000), pytest.raises(OutputRefused, match="cannot be written: File too large"):
        write(out)
    assert (names(out), out.read_bytes()) == (["out"], b"old")


def test_a_full_disk_for_the_ids_of_a_text(out, monkeypatch):
    monkeypatch.setattr("modernize.text.LARGE", 1000)
    text = long_text(out)
    with limited(5000), pytest.raises(OutputRefused, match="cannot be written"):
        encode_file(text, BytesTokenizer())
    assert names(out) == ["text"]
    assert len(encode_file(text, BytesTokenizer())) == 150_000


def test_a_text_that_cannot_be_read_is_no_output(out, monkeypatch):
    monkeypatch.setattr("modernize.text.LARGE", 1000)
    text = long_text(out)

    def torn(*_):
        yield "a"
        raise OSError(errno.EIO, "Input/output error", str(text))

    monkeypatch.setattr("modernize.text._pieces", torn)
    with pytest.raises(BadData, match="Input/output error"):
        encode_file(text, BytesTokenizer())
    assert names(out) == ["text"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO], ids=os.strerror)
@pytest.mark.parametrize("where", ["write", "readinto", "fsync", "replace", "chmod"])
def test_nothing_is_lost_wherever_the_system_refuses(out, monkeypatch, number, where):
    def fails(*_):
        raise OSError(number, os.strerror(number))

    out.write_bytes(b"old")
    if where in ("write", "readinto"):
        monkeypatch.setattr(whole, "FileIO", type("Full", (io.FileIO,), {where: fails}))
    else:
        monkeypatch.setattr(os if where == "fsync" else Path, where, fails)
    assert refused(out, [b"new"], os.strerror(number)).exit_code == 4
    assert (names(out), out.read_bytes()) == (["out"], b"old")


def test_a_conversion_onto_a_full_disk(run, nano, out):
    new = out.with_name("new.safetensors")
    new.write_bytes(b"old")
    with limited(20_000):
        found = run("convert", nano, new, "--init", "fold", "--force")
    assert (found.code, "File too large" in found.err, "hint: " in found.err) == (4, True, True)
    assert (names(out), new.read_bytes()) == (["new.safetensors"], b"old")


# ------------------------------------------------------------------------------------------ kills


WRITES = """
import sys
import numpy as np
from pathlib import Path
from modernize.whole import write_whole

path, size, turn = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
base = np.random.default_rng(0).integers(0, 256, size, np.uint8)
while True:
    made = base ^ np.uint8(turn % 256)
    print(turn, flush=True)
    write_whole(path, np.split(made, 4))
    turn += 1
"""


def killed(out, size, times, moments):
    """Kill a process that replaces a file again and again. How often there was half a file aside."""
    base = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    write_whole(out, [base])
    turn, halves = 1, 0
    for _ in range(times):
        with child("-c", WRITES, out, size, turn) as process:
            process.stdout.readline()
            select.select([], [], [], moments.random() * size / 2e8)
            process.kill()
            said = [turn, *map(int, process.stdout.read().split())]
        turn = said[-1]
        found = np.fromfile(out, np.uint8)
        assert found.size == size
        value = int(found[0] ^ base[0])
        assert value in (turn % 256, (turn - 1) % 256)  # the new one, or the one before
        assert np.array_equal(found, base ^ np.uint8(value))
        halves += len(names(out)) > 1
        write_whole(out, [base ^ np.uint8(turn % 256)])
        assert names(out) == ["out"]
        turn += 1
    return halves


def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new(out):
    assert killed(out, 16 << 20, 12, random.Random(1)) > 0


@pytest.mark.skipif(os.environ.get("MODERNIZE_LONG") != "1", reason="takes minutes (MODERNIZE_LONG=1)")
def test_fifty_kills_of_a_large_file(out):
    assert killed(out, 128 << 20, 50, random.Random(2)) > 0


# ------------------------------------------------------------------------------------------ folders


def filled(path, content):
    with folders.whole_folder(path, lambda: None) as aside:
        folders.write_text(aside / "config.json", content)


def test_a_folder_leaves_nothing_aside_and_removes_what_killed_runs_left(out):
    for name in (".out.01234567.part", ".out.01234567.old"):
        out.with_name(name).mkdir()
        (out.with_name(name) / "config.json").write_text("half")
    filled(out, "old")
    # what was set aside by a run that then was killed is all there is of the old one, as long as there is no new one
    assert names(out) == [".out.01234567.old", "out"]
    filled(out, "new")
    assert (names(out), (out / "config.json").read_text()) == (["out"], "new")


def test_a_folder_that_is_being_filled_is_not_removed(out):
    with folders.whole_folder(out, lambda: None) as aside:
        folders.write_text(aside / "config.json", "first")
        filled(out, "second")
        assert (out / "config.json").read_text() == "second"
    assert (names(out), (out / "config.json").read_text()) == (["out"], "first")


def test_folders_change_places_at_once(out, monkeypatch):
    filled(out, "old")
    out.with_name("other").mkdir()
    if not folders._swapped(out, out.with_name("other")):
        pytest.skip("the system has no such call")
    folders._swapped(out, out.with_name("other"))
    out.with_name("other").rmdir()
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("there is a moment with no folder"))
    filled(out, "new")
    assert (names(out), (out / "config.json").read_text()) == (["out"], "new")


def test_folders_change_places_one_after_the_other_where_that_cannot_be(out, monkeypatch):
    monkeypatch.setattr(folders, "_swapped", lambda *_: False)
    filled(out, "old")
    filled(out, "new")
    assert (names(out), (out / "config.json").read_text()) == (["out"], "new")


# ------------------------------------------------------------------------------------------ the same bytes


def conversions(nano, tmp_path, count, *options):
    """Hashes of what the command line writes, of processes with other hash seeds, folders, times and umasks."""
    waiting, found = [], set()
    for i in range(count):
        home = tmp_path / f"home {i}"
        home.mkdir()
        old = shutil.copy(nano, home / f"a model {i}.pt")
        os.utime(old, (10**9 * i, 10**9 * i))
        command = [sys.executable, "-m", "modernize", "convert", old.name if i % 2 else str(old), "new.safetensors"]
        process = subprocess.Popen(
            [*command, *options],
            cwd=home,
            env={**os.environ, "PYTHONHASHSEED": str(i * 7), "TZ": f"UTC{i - 5}", "USER": f"somebody {i}"},
            umask=0o077 if i % 2 else 0o022,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        waiting.append((process, home / "new.safetensors"))
        if len(waiting) == 2 or i == count - 1:  # two at a time
            for process, new in waiting:
                assert process.wait(timeout=300) == 0
                found.add(hashlib.sha256(new.read_bytes()).hexdigest())
            waiting = []
    return found


def test_ten_conversions_have_one_hash(nano, tmp_path):
    assert len(conversions(nano, tmp_path, 10, "--init", "fold")) == 1


def test_two_retrofits_have_one_hash(nano, tmp_path):
    assert len(conversions(nano, tmp_path, 2)) == 1
