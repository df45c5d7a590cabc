"""Hostile archives, headers and folders: what could be read in two ways is refused, and nothing is waited for."""

import io
import json
import os
import pickle
import struct
import time
import zipfile

import pytest
import tiny
import torch
from hostile import KEYS, SECONDS, file_with, hf_folder, members, read, refused, storage, tensor, text, write_zip

from modernize.checkpoint import limits, open_checkpoint
from modernize.errors import InputRefused, UnknownLayout, UnreadableFile
from modernize.recognise import recognise
from modernize.stored import stored_in

# ------------------------------------------------------------------------------------------ archives


def changed(raw, magic, name, at, new):
    """A field `at` bytes into the record of a member, `new` bytes in its place."""
    start = 0
    while True:
        start = raw.index(magic, start)
        length = 46 if magic == b"PK\x01\x02" else 30
        if name.encode() in raw[start + length : start + length + len(name) + 20]:
            return raw[: start + at] + new + raw[start + at + len(new) :]
        start += 4


LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
FIELDS = {
    "flags of a member": (LOCAL, 6, b"\x01\x00"),
    "flags in the directory": (CENTRAL, 8, b"\x01\x08"),
    "patched data": (CENTRAL, 8, b"\x20\x08"),
    "compression of a member": (LOCAL, 8, b"\x08\x00"),
    "compression in the directory": (CENTRAL, 10, b"\x08\x00"),
    "checksum of a member": (LOCAL, 14, b"\1\2\3\4"),
    "checksum in the directory": (CENTRAL, 16, b"\1\2\3\4"),
    "no checksum in the directory": (CENTRAL, 16, b"\0\0\0\0"),
    "size of a member": (LOCAL, 18, b"\x08\0\0\0\x08\0\0\0"),
    "size in the directory": (CENTRAL, 20, b"\x08\0\0\0\x08\0\0\0"),
    "packed size in the directory": (CENTRAL, 20, b"\x08\0\0\0"),
    "size of zip64 without zip64": (CENTRAL, 20, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    "length of a name": (LOCAL, 26, b"\x05\x00"),
    "length of a name in the directory": (CENTRAL, 28, b"\x05\x00"),
    "length of an extra field": (LOCAL, 28, b"\xff\xff"),
    "length of an extra field in the directory": (CENTRAL, 30, b"\xff\xff"),
    "comment of a member": (CENTRAL, 32, b"\x05\x00"),
    "disk of a member": (CENTRAL, 34, b"\x01\x00"),
    "place of a member": (CENTRAL, 42, b"\0\0\0\0"),
    "place beyond the end": (CENTRAL, 42, b"\xff\xff\xff\x7f"),
    "disk of the end": (END, 4, b"\x01\x00"),
    "count here": (END, 8, b"\x01\x00"),
    "count": (END, 8, b"\x01\x00\x01\x00"),
    "size of the directory": (END, 12, b"\x01\0\0\0"),
    "place of the directory": (END, 16, b"\x01\0\0\0"),
    "length of a comment": (END, 20, b"\x02\x00"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_an_archive_that_disagrees_with_another_is_refused(tmp_path, name):
    torch.save({"model": KEYS}, tmp_path / "m.pt")
    magic, at, new = FIELDS[name]
    raw = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "m.pt").write_bytes(changed(raw, magic, "" if magic == END else "/data/1", at, new))
    refused(tmp_path / "m.pt", error=UnreadableFile)


def test_a_checksum_that_was_taken_out_of_every_place_is_missed(tmp_path):
    torch.save({"model": KEYS}, tmp_path / "m.pt")
    raw, at = (tmp_path / "m.pt").read_bytes(), KEYS["transformer.wpe.weight"].numpy().tobytes()
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        crcs = [info.CRC for info in archive.infolist() if archive.read(info) == at]
    for crc in crcs:
        raw = raw.replace(struct.pack("<I", crc), bytes(4))
    (tmp_path / "m.pt").write_bytes(raw.replace(at, at[:-1] + b"\1"))
    refused(tmp_path / "m.pt", "some have none")


def with_extra(name, extra, **more):
    info = zipfile.ZipInfo(name)
    info.extra = extra
    for key, value in more.items():
        setattr(info, key, value)
    return info


ARCHIVES = {
    "a second root": lambda parts: [*parts, ("other/data.pkl", b"N.")],
    "a member of a second root": lambda parts: [*parts, ("other/x", b"")],
    "no root": lambda parts: [(name.partition("/")[2], data) for name, data in parts],
    "a member beside the root": lambda parts: [*parts, ("readme", b"")],
    "a folder": lambda parts: [*parts, ("archive/data/", b"")],
    "a folder with bytes": lambda parts: [*parts, ("archive/x/", b"x")],
    "a member twice": lambda parts: [*parts, parts[0]],
    "a storage twice": lambda parts: [*parts, ("archive/data/0", b"x" * 48)],
    "a path upwards": lambda parts: [*parts, ("archive/../data.pkl", b"N.")],
    "a path of the root": lambda parts: [*parts, ("/archive/x", b"")],
    "a path of Windows": lambda parts: [*parts, ("archive/a\\b", b"")],
    "a path with a dot": lambda parts: [*parts, ("archive/./data.pkl", b"N.")],
    "a long name": lambda parts: [*parts, ("archive/" + "x" * 60_000, b"")],
    "a byte order of others": lambda parts: [
        *[p for p in parts if "byteorder" not in p[0]],
        ("archive/byteorder", b"big"),
    ],
    "a long byte order": lambda parts: [
        *[p for p in parts if "byteorder" not in p[0]],
        ("archive/byteorder", b"little" + b" " * 100_000),
    ],
    "a pickle behind the pickle": lambda parts: [(n, d + b"N." if n.endswith("data.pkl") else d) for n, d in parts],
    "a value that the pickle leaves over": lambda parts: [
        (n, d[:2] + b"N" + d[2:] if n.endswith("data.pkl") else d) for n, d in parts
    ],
    "no pickle": lambda parts: [p for p in parts if not p[0].endswith("data.pkl")],
    "an empty pickle": lambda parts: [(n, b"" if n.endswith("data.pkl") else d) for n, d in parts],
    "a storage missing": lambda parts: [p for p in parts if not p[0].endswith("data/1")],
    "a storage too long": lambda parts: [(n, d + bytes(4) if n.endswith("data/1") else d) for n, d in parts],
    "zip64 without need": lambda parts: [
        *parts,
        (with_extra("archive/x", struct.pack("<2H2Q", 1, 16, 2**40, 2**40)), b"x"),
    ],
    "zip64 cut short": lambda parts: [*parts, (with_extra("archive/x", struct.pack("<2HI", 1, 8, 5)), b"x")],
    "an extra field beyond its end": lambda parts: [
        *parts,
        (with_extra("archive/x", struct.pack("<2H", 7, 500)), b"x"),
    ],
    "a comment": lambda parts: [*parts, (with_extra("archive/x", b"", comment=b"x"), b"x")],
    "compressed": lambda parts: [*parts, (with_extra("archive/x", b"", compress_type=zipfile.ZIP_DEFLATED), b"x")],
}


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_that_torch_would_not_write_is_refused(tmp_path, name):
    torch.save({"model": KEYS}, tmp_path / "archive.pt")
    parts = ARCHIVES[name](list(members(tmp_path / "archive.pt").items()))
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        for member, data in parts:
            archive.writestr(member if isinstance(member, zipfile.ZipInfo) else zipfile.ZipInfo(member), data)
    if name in ("zip64 without need", "a folder"):
        read(tmp_path / "m.pt")
    else:
        refused(tmp_path / "m.pt", error=UnreadableFile)


@pytest.mark.parametrize("change", [
    lambda raw: b"x" + raw, lambda raw: raw + b"x", lambda raw: raw + raw, lambda raw: raw[:-2] + b"\x01\x00x",
    lambda raw: raw[:30_000] + bytes(16) + raw[30_000:], lambda raw: raw + b"PK\x05\x06" + bytes(18),
])  # fmt: skip
def test_bytes_around_and_between_members_are_refused(tmp_path, change):
    torch.save({"model": KEYS}, tmp_path / "m.pt")
    (tmp_path / "m.pt").write_bytes(change((tmp_path / "m.pt").read_bytes()))
    refused(tmp_path / "m.pt", error=UnreadableFile)


@pytest.mark.parametrize("count", [0, 1, -1, 1000])
@pytest.mark.parametrize("at", [8, 10, 12, 16])
@pytest.mark.parametrize("zip64", [False, True])
def test_an_end_that_counts_otherwise_is_refused(tmp_path, count, at, zip64):
    torch.save({"model": KEYS}, tmp_path / "n.pt")
    path = tmp_path / "n.pt" if zip64 else write_zip(tmp_path / "m.pt", members(tmp_path / "n.pt").items())
    raw = bytearray(path.read_bytes())
    for start, size in ((raw.rindex(END), 2 if at < 12 else 4), *([(raw.rindex(b"PK\x06\x06"), 8)] if zip64 else [])):
        place = start + (at if size < 8 else {8: 24, 10: 32, 12: 40, 16: 48}[at])
        number = int.from_bytes(raw[place : place + size], "little")
        raw[place : place + size] = (number + (count or 5)).to_bytes(size, "little")
    path.write_bytes(raw)
    refused(path, error=UnreadableFile)


def test_an_end_that_counts_fewer_in_both_places_is_refused(tmp_path):
    torch.save({"model": KEYS}, tmp_path / "n.pt")
    path = write_zip(tmp_path / "m.pt", members(tmp_path / "n.pt").items())
    raw, at = path.read_bytes(), path.read_bytes().rindex(END)
    path.write_bytes(raw[: at + 8] + struct.pack("<2H", 3, 3) + raw[at + 12 :])
    refused(path, "more than its members")


def test_an_archive_of_too_many_members_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MEMBERS", 10)
    torch.save({"model": KEYS}, tmp_path / "m.pt")
    refused(tmp_path / "m.pt", "members, more than 10")


@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_member_that_the_directory_does_not_name_is_refused(tmp_path, place):
    torch.save({"model": KEYS}, tmp_path / "archive.pt")
    parts = list(members(tmp_path / "archive.pt").items())
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        for name, data in [*parts[:place], ("archive/hidden", b"x"), *parts[place:]]:
            archive.writestr(zipfile.ZipInfo(name), data)
        archive.filelist = [info for info in archive.filelist if info.filename != "archive/hidden"]
    refused(tmp_path / "m.pt", "does not begin where|something stands behind", error=UnreadableFile)


def test_a_storage_is_of_one_dtype(tmp_path):
    path = file_with(tmp_path / "m.pt", b"(" + tensor() + tensor(held=storage("IntStorage")) + b"t")
    refused(path, "described in two ways")


# ------------------------------------------------------------------------------------------ legacy files


def legacy(path, *, protocol=1001, facts=None, keys=None, tail=b"", sizes=None, rest=None):
    """A legacy file with parts of it changed."""
    torch.save({"model": KEYS}, path, _use_new_zipfile_serialization=False)
    stream = io.BytesIO(path.read_bytes())
    said = [pickle.load(stream) for _ in range(3)]
    start = stream.tell()
    end = path.read_bytes().index(b".\x80\x02]", start) + 1
    root = path.read_bytes()[start:end]
    stream.seek(end)
    order = pickle.load(stream)
    parts = [said[0], protocol, {**said[2], **(facts or {})}]
    changed_keys = order if keys is None else keys(order)
    rest = stream.read() if rest is None else rest
    if sizes is not None:
        rest = sizes + rest[8:]
    path.write_bytes(
        b"".join(pickle.dumps(part, 2) for part in parts) + root + pickle.dumps(changed_keys, 2) + rest + tail
    )
    return path


LEGACY = {
    "another protocol": ({"protocol": 1000}, "protocol is 1000"),
    "a protocol of text": ({"protocol": "1001"}, "protocol is 1001"),
    "a big-endian machine": ({"facts": {"little_endian": False}}, "big-endian"),
    "a machine that is 1": ({"facts": {"little_endian": 1}}, "big-endian"),
    "no keys": ({"keys": lambda keys: []}, "stand behind"),
    "no keys and no bytes": ({"keys": lambda keys: [], "rest": b""}, "is not in the file"),
    "a key missing": ({"keys": lambda keys: keys[1:]}, "and does not"),
    "a key twice": ({"keys": lambda keys: [*keys, keys[0]]}, "list of storages"),
    "a key of no storage": ({"keys": lambda keys: [*keys, "5"]}, "belongs to no tensor"),
    "keys in another order": ({"keys": lambda keys: keys[::-1]}, "and does not"),
    "keys that are numbers": ({"keys": lambda keys: list(range(len(keys)))}, "has the key 0"),
    "keys in a dictionary": ({"keys": dict.fromkeys}, "list of storages"),
    "bytes behind": ({"tail": b"x"}, "1 bytes stand behind"),
    "another file behind": ({"tail": b"PK\x03\x04" + bytes(600)}, "stand behind"),
    "a size too large": ({"sizes": struct.pack("<q", 2**40)}, "and does not"),
    "a negative size": ({"sizes": struct.pack("<q", -1)}, "and does not"),
}


@pytest.mark.parametrize("name", LEGACY)
def test_a_legacy_file_whose_parts_disagree_is_refused(tmp_path, name):
    read(legacy(tmp_path / "m.pt"))
    change, said = LEGACY[name]
    refused(legacy(tmp_path / "m.pt", **change), said, error=UnreadableFile)


def test_a_storage_that_is_a_part_of_another_is_refused(tmp_path):
    raw = legacy(tmp_path / "m.pt").read_bytes()
    assert b"Ntq" in raw
    (tmp_path / "m.pt").write_bytes(raw.replace(b"Ntq", text("v") + b"K\x00K\x04\x87tq", 1))
    refused(tmp_path / "m.pt", "a part of another")


# ------------------------------------------------------------------------------------------ safetensors


def safetensors_of(path, header, data=None, *, length=None):
    """A file with this header, a text or what becomes one."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = bytes(16) if data is None else data
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + body)
    return path


ROW = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
ROW_TEXT = json.dumps(ROW).encode()
HEADERS = {
    "a name twice": b'{"a": ' + ROW_TEXT + b', "a": ' + ROW_TEXT + b"}",
    "a name twice, once escaped": b'{"a": ' + ROW_TEXT + b', "\\u0061": ' + ROW_TEXT + b"}",
    "a field twice": b'{"a": {"dtype": "F32", "dtype": "I32", "shape": [4], "data_offsets": [0, 16]}}',
    "metadata twice": b'{"__metadata__": {}, "__metadata__": {}, "a": ' + ROW_TEXT + b"}",
    "overlapping": {"a": ROW, "b": {**ROW, "shape": [2], "data_offsets": [8, 16]}},
    "the same bytes": {"a": ROW, "b": ROW},
    "a gap": {"a": {**ROW, "shape": [1], "data_offsets": [0, 4]}, "b": {**ROW, "shape": [2], "data_offsets": [8, 16]}},
    "bytes in front": {"a": {**ROW, "shape": [3], "data_offsets": [4, 16]}},
    "bytes behind": {"a": {**ROW, "shape": [3], "data_offsets": [0, 12]}},
    "bytes that are not there": {"a": {**ROW, "shape": [5], "data_offsets": [0, 20]}},
    "a shape of fewer numbers": {"a": {**ROW, "shape": [3]}},
    "a shape of more numbers": {"a": {**ROW, "shape": [2, 4]}},
    "a wider dtype": {"a": {**ROW, "dtype": "F64"}},
    "a narrower dtype": {"a": {**ROW, "dtype": "F16"}},
    "a size of floating point": {"a": {**ROW, "shape": [4.0]}},
    "a size that is true": {"a": {**ROW, "shape": [4, True]}},
    "a negative size": {"a": {**ROW, "shape": [-2, -2]}},
    "a size that overflows": {"a": {**ROW, "shape": [2**62, 4]}},
    "a size of text": {"a": {**ROW, "shape": ["4"]}},
    "no size": {"a": {**ROW, "shape": None}},
    "an offset of floating point": {"a": {**ROW, "data_offsets": [0, 16.0]}},
    "a negative offset": {"a": {**ROW, "data_offsets": [-16, 0]}},
    "offsets that are turned": {"a": {**ROW, "data_offsets": [16, 0]}},
    "one offset": {"a": {**ROW, "data_offsets": [16]}},
    "an offset of NaN": b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, NaN]}}',
    "an offset of too many digits": b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, ' + b"9" * 5000 + b"]}}",
    "a dtype of nobody": {"a": {**ROW, "dtype": "F128"}},
    "a dtype in small letters": {"a": {**ROW, "dtype": "f32"}},
    "a dtype that is none": {"a": {**ROW, "dtype": ["F32"]}},
    "an empty tensor that is huge": {"a": ROW, "b": {**ROW, "shape": [0, 2**62], "data_offsets": [16, 16]}},
    "too many axes": {"a": {**ROW, "shape": [4] + [1] * 20}},
    "a row too much": {"a": {**ROW, "x": 1}},
    "a row too few": {"a": {"dtype": "F32", "shape": [4]}},
    "a row that is none": {"a": [ROW]},
    "metadata that are a list": {"__metadata__": ["x"], "a": ROW},
    "metadata of numbers": {"__metadata__": {"x": 1}, "a": ROW},
    "metadata in one another": {"__metadata__": {"x": {"y": "z"}}, "a": ROW},
    "a long name": {"x" * 100_000: ROW},
    "half a character": {"\ud800": ROW},
    "a long alias": {"__metadata__": {"x" * 100_000: "a"}, "a": ROW},
    "an alias of half a character": {"__metadata__": {"\ud800": "a"}, "a": ROW},
    "many aliases": {"__metadata__": {f"x{n}": "a" for n in range(60_000)}, "a": ROW},
    "many tensors": {"a": ROW, **{f"x{n}": {**ROW, "shape": [0], "data_offsets": [16, 16]} for n in range(50_001)}},
    "a list": [ROW],
    "deep": b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps({"a": ROW}).encode(),
    "a space in front": b" " + json.dumps({"a": ROW}).encode(),
    "no UTF-8": json.dumps({"a": ROW}).encode("utf-16"),
    "bytes behind its end": json.dumps({"a": ROW}).encode() + b"{}",
    "a zero behind its end": json.dumps({"a": ROW}).encode() + b"\0",
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_another_reader_could_read_otherwise_is_refused(tmp_path, name):
    safetensors_of(tmp_path / "good", {"a": ROW})
    open_checkpoint(tmp_path / "good").read("a")
    begun = time.process_time()
    with pytest.raises(UnreadableFile) as caught:
        open_checkpoint(safetensors_of(tmp_path / "m", HEADERS[name]))
    assert time.process_time() - begun < SECONDS
    assert len(caught.value.sentence) < 1000


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 2**24 + 1, 100_000, 0, 1])
def test_a_header_of_another_length_is_refused(tmp_path, length):
    with pytest.raises(UnreadableFile):
        open_checkpoint(safetensors_of(tmp_path / "m", {"a": ROW}, length=length))
    if length == 2**24 + 1:
        with pytest.raises(UnreadableFile, match="more than 16,777,216"):
            open_checkpoint(safetensors_of(tmp_path / "m", json.dumps({"a": ROW}).encode().ljust(length)))


def modern(path, **change):
    """A modern file whose metadata say this."""
    tiny.save_modern(path)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    plain = json.loads(header["__metadata__"]["modernize"])
    for place, value in change.items():
        holder, *rest = place.split("__")
        if rest:
            plain[holder][rest[0]] = value
        else:
            plain[holder] = value
    header["__metadata__"]["modernize"] = json.dumps(plain)
    return safetensors_of(path, header, raw[8 + length :])


MODERN = {
    "a trillion layers": {"config__n_layer": 10**12},
    "layers that are true": {"config__n_layer": True},
    "a layer more": {"config__n_layer": 3},
    "a width beyond all": {"config__n_embd": 10**400},
    "a width of text": {"config__n_embd": "x" * 100_000},
    "an epsilon beyond all": {"config__norm_eps": 10**400},
    "an epsilon without end": {"config__norm_eps": float("inf")},
    "biases that are a text": {"config__biases": "q"},
    "biases that are lists": {"config__biases": [["q"]]},
    "an activation that is a list": {"config__activation": ["gelu"]},
    "a tie that is 1": {"config__tied": 1},
    "no configuration": {"config": None},
    "a configuration of lists": {"config": [["n_layer", 2]]},
    "a token without end": {"vocabulary": {"a": float("inf")}},
    "a token of text": {"vocabulary": {"a": "x"}},
    "tokens in a list": {"vocabulary": ["a"]},
    "heads of text": {"source__facts": {"n_head": "4"}},
    "an activation of a number": {"source__facts": {"activation": 5}},
    "facts in a list": {"source__facts": ["n_head"]},
    "a schema of text": {"schema": "x" * 100_000},
    "runs that are numbers": {"finetunes": [5]},
    "losses that are numbers": {"finetunes": [{"loss": 5}]},
    "a calibration that is a number": {"calibration": 5},
}


@pytest.mark.parametrize("name", MODERN)
def test_metadata_of_a_modern_file_that_cannot_be_are_refused(tmp_path, name):
    assert stored_in(open_checkpoint(modern(tmp_path / "m")))
    path, begun = modern(tmp_path / "m", **MODERN[name]), time.process_time()
    with pytest.raises(UnreadableFile) as caught:
        stored_in(open_checkpoint(path))
    assert time.process_time() - begun < SECONDS
    assert len(caught.value.sentence) < 1000


# ------------------------------------------------------------------------------------------ folders and files


INDEXED = {
    "upwards": "../model.safetensors",
    "absolute": "/etc/passwd",
    "into a folder": "x/model.safetensors",
    "of Windows": "..\\model.safetensors",
    "zero": "a\0b",
    "half a character": "\ud800",
    "a command": "\x1b[2J",
    "long": "x" * 5000,
    "long and round": "é" * 200,
    "dots": "..",
    "a dot": ".",
    "nothing": "",
    "a folder": "folder",
    "a pipe": "pipe",
    "a device": "device",
    "a loop": "loop",
    "a dangling link": "dangling",
    "the index itself": "model.safetensors.index.json",
    "the configuration": "config.json",
    "a number": 5,
    "a list": ["model.safetensors"],
}


@pytest.fixture
def folder(tmp_path):
    """A folder in shards, with things in it that are no files."""
    made = hf_folder(tmp_path / "hf")
    (made / "model.safetensors").rename(made / "shard")
    (made / "folder").mkdir()
    os.mkfifo(made / "pipe")
    for name, target in (("device", "/dev/zero"), ("loop", "loop"), ("dangling", "nowhere")):
        (made / name).symlink_to(target)
    return made


def index(made, where, **more):
    plain = {"weight_map": where, **more}
    said = where if isinstance(where, str) else json.dumps(plain)
    (made / "model.safetensors.index.json").write_text(said)
    return made


def names_in(made):
    return list(open_checkpoint(made / "shard").tensors)


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_reads_nothing_but_files_of_its_folder(folder, name):
    names = names_in(folder)
    read_folder = recognise(open_checkpoint(index(folder, dict.fromkeys(names, "shard")))).state()
    assert torch.equal(read_folder["wte.weight"], KEYS["transformer.wte.weight"])
    refused(index(folder, {**dict.fromkeys(names, "shard"), names[0]: INDEXED[name]}), error=UnreadableFile)
    refused(index(folder, {**dict.fromkeys(names, "shard"), "x": INDEXED[name]}), error=UnreadableFile)


def test_an_index_of_thousands_is_refused_soon(folder):
    refused(index(folder, {f"x{n}": f"shard{n}" for n in range(40_000)}), "not there")
    refused(index(folder, {f"x{n}": "shard" for n in range(60_000)}), "more than 50,000")
    refused(index(folder, '{"weight_map": {"a": "shard", "a": "shard"}}'), "twice")
    refused(index(folder, {"x" * 5000: "shard"}), "longer than 512")
    refused(index(folder, {"x": "shard"} | {"\ud800": "shard"}), "no whole text")
    (folder / "model.safetensors.index.json").write_bytes(b" " * (2**24 + 1))
    refused(folder, "more than 16,777,216")


@pytest.mark.parametrize(
    "place", ["config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"]
)
@pytest.mark.parametrize("what", ["pipe", "device", "folder", "loop", "dangling"])
def test_what_is_no_file_is_never_waited_for(folder, place, what):
    index(folder, dict.fromkeys(names_in(folder), "shard"))
    (folder / place).unlink(missing_ok=True)
    (folder / what).rename(folder / place)
    begun = time.process_time()
    try:
        state = recognise(open_checkpoint(folder)).state()
        assert torch.equal(state["wte.weight"], KEYS["transformer.wte.weight"])
    except UnreadableFile as error:
        assert place in str(error) or "holds" in str(error) or "config.json" in str(error)
    with pytest.raises(UnreadableFile):
        open_checkpoint(folder / place)
    assert time.process_time() - begun < SECONDS


def test_a_configuration_beside_a_file_that_is_a_pipe_is_not_waited_for(tmp_path):
    made = hf_folder(tmp_path / "hf")
    (made / "config.json").unlink()
    os.mkfifo(made / "config.json")
    open_checkpoint(made / "model.safetensors")


@pytest.mark.parametrize("kind", [[], {}, ["llama"], 5, True, None, "x" * 100_000, "gpt2\0"])
def test_a_model_type_of_any_value_is_no_obstacle(tmp_path, kind):
    path = hf_folder(tmp_path / "hf", model_type=kind)
    try:
        recognise(open_checkpoint(path))
    except InputRefused as error:
        assert len(error.sentence) < 1000
        assert isinstance(error, UnknownLayout)


@pytest.mark.parametrize("path", ["a" * 300, "/" + "x/" * 3000, "a\0b", "\ud800", "/dev/null", "/dev/zero"])
def test_a_path_that_no_file_can_have_is_refused(path):
    with pytest.raises(UnreadableFile):
        open_checkpoint(path)
