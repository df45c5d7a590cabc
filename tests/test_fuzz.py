"""Mutants of good files: each is refused with a sentence, or gives what the file says, soon and with little memory.

By default a few hundred of each kind; MODERNIZE_LONG=1 tries 20,000. The seed is fixed, so a failure comes back, and
its message names the number of the mutant. What a mutant may give:

    zip, archive   what the original gives, bit for bit: its checksums are still those of the original
    pickle         the checksums are right again, so what torch.load(weights_only=True) gives, where it gives something
    legacy         the same; there are no checksums
    safetensors    what safetensors' own loader gives, where it gives something
    index, config  what Python's json reads there, and the tensors of the original
"""

import copy
import io
import json
import os
import pickletools
import random
import re
import resource
import struct
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import safetensors
import tiny
import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save_file

from modernize.checkpoint import open_checkpoint
from modernize.checkpoint.records import Misfit, Name, Record, Storage, View
from modernize.checkpoint.torch_file import load_torch
from modernize.errors import InputRefused
from modernize.facts import Facts
from modernize.recognise import recognise
from modernize.stored import stored_in

LONG = os.environ.get("MODERNIZE_LONG") == "1"
FACTS = Facts(n_head=2, activation="gelu")
SPEC = tiny.spec(n_layer=1, n_head=2, n_embd=4, n_inner=4, block_size=2, vocab_size=3, biases=("ln_1", "ln_2", "ln_f"))
KEYS = tiny.as_dialect(tiny.jittered(SPEC), SPEC, tiny.dialect("nanogpt"))
HF_KEYS = {n: t.clone() for n, t in tiny.as_dialect(tiny.jittered(SPEC), SPEC, tiny.dialect("gpt2")).items()}
WHOLE = {
    "model": KEYS,
    "model_args": {**tiny.model_args(SPEC), "activation": "gelu"},
    "iter_num": 7,
    "loss": 2.5,
    "stoi": {"a": 0, "b": 1, "c": 2},
    "note": [None, True, (1, 2, 3), {"é"}, b"raw", 2**70],
}
CONFIG = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 4, "n_positions": 2, "vocab_size": 3}
CONFIG |= {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "summary": {"type": ["x", None, 0.1]}}
INTEGERS = (0, 1, 2, -1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
SECONDS, SENTENCE, MEMORY = 2.0, 4000, 32 << 10  # for one mutant: at most; characters; KiB that it may add

Mutation = Callable[[random.Random, bytes], bytes]

# ------------------------------------------------------------------------------------------ mutations of any bytes


def span(r: random.Random, raw: bytes, most: int = 64) -> tuple[int, int]:
    start = r.randrange(len(raw) + 1)
    return start, min(len(raw), start + r.randrange(1, most))


def flip_bits(r: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(r.choice((1, 1, 1, 2, 5))):
        changed[r.randrange(len(raw))] ^= 1 << r.randrange(8)
    return bytes(changed)


def change_bytes(r: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(r.choice((1, 1, 2, 5))):
        changed[r.randrange(len(raw))] = r.choice((0, 255, r.randrange(256)))
    return bytes(changed)


def insert(r: random.Random, raw: bytes) -> bytes:
    at, _ = span(r, raw)
    return raw[:at] + r.choice((bytes(r.randrange(1, 9)), r.randbytes(r.randrange(1, 40)))) + raw[at:]


def delete(r: random.Random, raw: bytes) -> bytes:
    start, end = span(r, raw)
    return raw[:start] + raw[end:]


def duplicate(r: random.Random, raw: bytes) -> bytes:
    start, end = span(r, raw, 400)
    return raw[:end] + raw[start:end] + raw[end:]


def swap(r: random.Random, raw: bytes) -> bytes:
    (a, b), (c, d) = sorted((span(r, raw), span(r, raw)))
    b = min(b, c)
    return raw[:a] + raw[c:d] + raw[b:c] + raw[a:b] + raw[d:]


def put_integer(r: random.Random, raw: bytes) -> bytes:
    """A number that programs get wrong, over any bytes, which lengths are among."""
    size = r.choice((1, 2, 4, 8))
    number = (r.choice((*INTEGERS, len(raw), len(raw) - 8)) % (1 << 8 * size)).to_bytes(size, "little")
    at = r.randrange(max(1, len(raw) - size))
    return raw[:at] + number + raw[at + size :]


def truncate(r: random.Random, raw: bytes) -> bytes:
    return raw[: r.randrange(len(raw))]


def lengthen(r: random.Random, raw: bytes) -> bytes:
    return r.choice((raw + raw, raw + raw[: r.randrange(len(raw))], raw[r.randrange(len(raw)) :] + raw, raw + b"\0"))


BYTES: tuple[Mutation, ...] = (
    flip_bits, change_bytes, insert, delete, duplicate, swap, put_integer, truncate, lengthen,
)  # fmt: skip

# ------------------------------------------------------------------------------------------ of archives


def members(raw: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def archive_of(parts: list[tuple[str, bytes]]) -> bytes:
    """Stored, and with checksums that fit."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in parts:
            archive.writestr(zipfile.ZipInfo(name), data)
    return made.getvalue()


def change_record(r: random.Random, raw: bytes) -> bytes:
    """A field of a header, where an archive says what lies where."""
    records = [
        at for magic in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08") for at in places(raw, magic)
    ]
    changed = bytearray(raw)
    for _ in range(r.choice((1, 1, 2))):
        at, size = r.choice(records) + r.randrange(4, 46), r.choice((2, 4))
        number = (r.choice((*INTEGERS, r.choice(records), len(raw))) % (1 << 8 * size)).to_bytes(size, "little")
        changed[at : at + size] = number
    return bytes(changed)[: max(len(raw), 1)]


def swap_members(r: random.Random, raw: bytes) -> bytes:
    """The bytes of two storages, each with the name and the checksum of the other still in place."""
    one, other = r.sample([data for name, data in members(raw) if "/data/" in name and data], 2)
    a, b = raw.index(one), raw.index(other)
    (a, one), (b, other) = sorted(((a, one), (b, other)))
    return raw[:a] + other + raw[a + len(one) : b] + one + raw[b + len(other) :]


def swap_names(r: random.Random, raw: bytes) -> bytes:
    one, other = (name.encode() for name in r.sample([name for name, _ in members(raw) if "/data/" in name], 2))
    return raw.replace(one, b"\0\0\0").replace(other, one).replace(b"\0\0\0", other) if r.random() < 0.5 else (
        raw.replace(one, other, r.choice((1, 2)))
    )  # fmt: skip


def places(raw: bytes, magic: bytes) -> list[int]:
    return [match.start() for match in re.finditer(re.escape(magic), raw)]


# ------------------------------------------------------------------------------------------ of pickles


def instructions(pickled: bytes) -> list[bytes]:
    starts = [at for _, _, at in pickletools.genops(pickled)]
    return [pickled[a:b] for a, b in zip(starts, [*starts[1:], len(pickled)], strict=True)]


def text(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word.encode())) + word.encode()


ODD = (
    b"N", b"(", b"0", b"1", b"2", b")", b"]", b"}", b"\x8f", b"t", b"l", b"d", b"a", b"e", b"s", b"u", b"b", b"R", b"Q",
    b"\x81", b"\x85", b"\x86", b"\x87", b"\x88", b"\x90", b"\x91", b"\x92", b"\x93", b"\x94", b".", b"i", b"o",
    b"\x82\x01", b"K\x00", b"K\x05", b"J\xff\xff\xff\xff", b"M\xff\xff", b"G" + struct.pack(">d", 0.5),
    b"\x8a\x09" + bytes(8) + b"\x01", b"\x8a\xff", b"\x8b\xff\xff\xff\x7f", b"I01\n", b"I5\n", b"L9L\n", b"F1e400\n",
    b"Vx\n", b"q\x00", b"h\x00", b"h\x05", b"r\xff\xff\xff\xff", b"j\xff\xff\xff\xff", b"p9\n", b"g9\n",
    b"C\x03abc",    b"X\xff\xff\xff\xff", b"\x8d" + b"\xff" * 8, b"B\xff\xff\xff\x7f", b"\x95" + b"\xff" * 8,
    b"\x80\x02", b"\x80\x09",
    text("model"), text("storage"), text("wte.weight"), text("\u20ac"), b"U\x02ab", b"T\x02\0\0\0ab", b"S'a'\n",
    b"ccollections\nOrderedDict\n", b"ctorch\nFloatStorage\n", b"ctorch\nIntStorage\n", b"ctorch\nBoolStorage\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n", b"cposix\nsystem\n", b"cmain\nA\n",
    b"c_codecs\nencode\n", b"cbuiltins\nset\n", b"cbuiltins\nbytearray\n", b"cnumpy\ndtype\n", b"ctorch\nSize\n",
)  # fmt: skip


def mutate_pickle(r: random.Random, pickled: bytes) -> bytes:
    """One to three instructions put in, taken out, replaced, moved or repeated."""
    ops = instructions(pickled)
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        at, other = r.randrange(len(ops)), r.randrange(len(ops))
        how = r.randrange(6)
        if how == 0:
            ops.insert(at, r.choice((*ODD, ops[other])))
        elif how == 1 and len(ops) > 1:
            del ops[at]
        elif how == 2:
            ops[at] = r.choice((*ODD, ops[other]))
        elif how == 3:
            ops[at], ops[other] = ops[other], ops[at]
        elif how == 4:
            ops[at:at] = ops[at : at + r.randrange(1, 12)]
        else:
            ops[at] = ops[at][:1] + flip_bits(r, ops[at][1:]) if ops[at][1:] else ops[at]
    return b"".join(ops)


def pickle_in_zip(r: random.Random, raw: bytes) -> bytes:
    return archive_of([(n, mutate_pickle(r, data) if n.endswith("/data.pkl") else data) for n, data in members(raw)])


def pickle_bytes_in_zip(r: random.Random, raw: bytes) -> bytes:
    change = r.choice(BYTES)
    return archive_of([(n, change(r, data) if n.endswith("/data.pkl") else data) for n, data in members(raw)])


def members_of_zip(r: random.Random, raw: bytes) -> bytes:
    """Members taken out, put in twice, renamed, resized, in another order; the checksums are right."""
    parts = members(raw)
    at, other = r.randrange(len(parts)), r.randrange(len(parts))
    name, data = parts[at]
    how = r.randrange(6)
    if how == 0:
        del parts[at]
    elif how == 1:
        parts[at] = (r.choice((name + "x", "a/../" + name, name.replace("/", "\\"), "/" + name, "x", "é/é")), data)
    elif how == 2:
        parts[at] = (name, r.choice(BYTES)(r, data or b"\0"))
    elif how == 3:
        parts[at] = (name, parts[other][1])
    elif how == 4:
        r.shuffle(parts)
    else:
        parts.append((name[:-1] + r.choice("0123456789"), data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return archive_of(parts)


def legacy_pickles(r: random.Random, raw: bytes) -> bytes:
    """One of the five pickles of a legacy file."""
    stream, parts = io.BytesIO(raw), []
    for _ in range(5):
        start = stream.tell()
        list(pickletools.genops(stream))
        parts.append(raw[start : stream.tell()])
    at = r.choice((0, 1, 2, 3, 3, 3, 3, 4, 4))
    parts[at] = mutate_pickle(r, parts[at])
    return b"".join(parts) + raw[stream.tell() :]


def legacy_sizes(r: random.Random, raw: bytes) -> bytes:
    """A number over what stands before a storage."""
    at = len(raw) - 4 * r.randrange(2, 40)
    return raw[:at] + (r.choice(INTEGERS) % (1 << 64)).to_bytes(8, "little") + raw[at + 8 :]


# ------------------------------------------------------------------------------------------ of JSON

ODD_VALUES = (
    None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, float("inf"), float("nan"), 2**31, 2**53 + 1, 2**63, 2**64, -(2**63),
    10**400, "", "x", "\ud800", "é\u20ac\U0001f600", "\0", "a" * 700, "../x", "/etc/passwd", [], {}, [0], [-1, 5],
    ["x"], {"x": 1}, "gpt2", "llama", "F32", "F16", "I64", "BOOL",
    "model-00001-of-00002.safetensors", "{}", '{"n_head": 2}',
)  # fmt: skip


def nodes(value: object) -> list[tuple[object, object]]:
    """Every (container, key) in a value."""
    found: list[tuple[object, object]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        found += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys]  # type: ignore[index]
    return found


def nested(r: random.Random) -> object:
    value: object = 1
    for _ in range(r.choice((2, 99, 120, 400))):
        value = [value] if r.random() < 0.5 else {"config": value}
    return value


def mutate_json(r: random.Random, text: bytes) -> bytes:
    """Values of other types and sizes, keys renamed, taken out, put in, written twice."""
    plain = json.loads(text)
    for _ in range(r.choice((1, 1, 2))):
        found = nodes(plain)
        if not found:
            break
        holder, key = r.choice(found)
        how = r.randrange(7)
        if how <= 2:
            holder[key] = copy.deepcopy(r.choice((*ODD_VALUES, nested(r)) if how else ODD_VALUES))
        elif how == 3:
            del holder[key]
        elif how == 4:
            other, place = r.choice(found)
            holder[key] = json.loads(json.dumps(other[place]))
        elif isinstance(holder, dict):
            new = r.choice((f"{key}x", f"{key}", "__metadata__", "", "\ud800", "n" * 600, "n_head", "modernize"))
            holder[new] = holder.pop(key) if how == 5 else copy.deepcopy(r.choice(ODD_VALUES))
    made = json.dumps(plain, ensure_ascii=r.random() < 0.7).encode("utf-8", "surrogatepass")
    if r.random() < 0.15:
        word = r.choice(made.split(b'"')[1::2] or [b"x"])
        made = made.replace(b'"' + word + b'":', b'"' + word + b'": 0, "' + word + b'":', 1)
    return r.choice((b"", b"", b"", b"", b"\xef\xbb\xbf", b" ")) + made + r.choice((b"", b"", b" ", b"\n", b"x", b"\0"))


def header(r: random.Random, raw: bytes) -> bytes:
    """The header of a safetensors file, with a length that fits."""
    length = int.from_bytes(raw[:8], "little")
    new = mutate_json(r, raw[8 : 8 + length])
    return len(new).to_bytes(8, "little") + new + raw[8 + length :]


# ------------------------------------------------------------------------------------------ what a mutant may give


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit."""
    alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and one.contiguous().view(-1).view(torch.uint8).equal(other.contiguous().view(-1).view(torch.uint8))


def all_equal(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> bool:
    return list(ours) == list(theirs) and all(equal(ours[name], theirs[name]) for name in ours)


@dataclass(frozen=True)
class Given:
    """What a file gave."""

    path: Path
    raw: bytes
    tensors: dict[str, torch.Tensor]
    settings: Mapping[str, object]
    vocabulary: Mapping[str, int]
    metadata: Mapping[str, str]


def given(path: Path, raw: bytes) -> Given:
    """Everything that a reader may be asked for. Raises what it raises."""
    checkpoint = open_checkpoint(path)
    checkpoint.sha256()
    tensors = {name: checkpoint.source.read(name) for name in checkpoint.raw_names.values()}
    return Given(path, raw, tensors, checkpoint.settings, checkpoint.vocabulary, checkpoint.metadata)


def converted(path: Path) -> None:
    """What comes after reading. Raises what it raises."""
    checkpoint = open_checkpoint(path)
    if stored_in(checkpoint) is None:
        recognise(checkpoint, FACTS).state()


def as_the_original(found: Given, original: Given) -> bool:
    assert all_equal(found.tensors, original.tensors)
    assert (found.settings, found.vocabulary) == (original.settings, original.vocabulary)
    return True


def as_torch(found: Given, original: Given) -> bool:
    """The whole value, tensors and all else, as torch's own careful loader gives it; False where that gives none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = torch.load(found.path, weights_only=True)
        except Exception:
            return False
    root = load_torch(found.path, legacy=found.raw[:2] != b"PK")
    assert alike(root.items, theirs, lambda view: root.wrap(found.path, {"x": view}).read("x"))
    return True


def alike(ours: object, theirs: object, read: Callable[[View], torch.Tensor]) -> bool:
    """Whether what is left of a pickle stands for what torch has made of it."""
    if isinstance(ours, View):
        try:
            return isinstance(theirs, torch.Tensor) and equal(read(ours), theirs.detach())
        except InputRefused:  # an expanded tensor
            return True
    if isinstance(ours, dict):
        return isinstance(theirs, dict) and len(ours) == len(theirs) and all(
            alike(a, b, read) and alike(ours[a], theirs[b], read) for a, b in zip(ours, theirs, strict=True)
        )  # fmt: skip
    if isinstance(ours, list | tuple):
        same = isinstance(theirs, list | tuple) and len(ours) == len(theirs)
        return same and all(alike(a, b, read) for a, b in zip(ours, theirs, strict=True))
    if isinstance(ours, set):
        return isinstance(theirs, set | frozenset) and len(ours) == len(theirs)
    if isinstance(ours, Record | Misfit | Name):
        return not isinstance(theirs, int | float | str | list | tuple | set)
    if isinstance(ours, Storage) or isinstance(theirs, tuple):  # a tuple as a key is a text
        return isinstance(ours, Storage | str)
    same = ours == theirs or repr(ours) == repr(theirs)
    return same and (type(ours) is type(theirs) or isinstance(theirs, bytearray | frozenset))


def as_safetensors(found: Given, original: Given) -> bool:
    """What safetensors' own loader gives; False where that refuses."""
    try:
        theirs = load_safetensors(found.raw)
        with safetensors.safe_open(found.path, "pt") as opened:
            metadata = opened.metadata() or {}
    except Exception:
        return False
    aliases = {gone: kept for gone, kept in metadata.items() if gone not in theirs and kept in theirs}
    own = {name: tensor for name, tensor in found.tensors.items() if name not in aliases}
    assert own.keys() == theirs.keys()
    assert all(equal(own[name], theirs[name]) for name in own)
    assert found.metadata == metadata
    return True


def as_json(found: Given, original: Given) -> bool:
    """An index or a configuration: as Python's json reads it, and the tensors are those of the original."""
    plain = json.loads(found.raw.decode("utf-8-sig"))
    assert {
        name: tensor for name, tensor in original.tensors.items() if name in found.tensors
    }.keys() == found.tensors.keys()
    assert all(equal(found.tensors[name], original.tensors[name]) for name in found.tensors)
    if found.path.is_dir() and (found.path / "model.safetensors").exists():
        assert repr(found.settings["config.json"]) == repr(plain)
    else:
        assert plain["weight_map"].keys() == found.tensors.keys()
    return True


# ------------------------------------------------------------------------------------------ the kinds


def make_zip(folder: Path) -> Path:
    torch.save(WHOLE, folder / "m")
    return folder / "m"


def make_legacy(folder: Path) -> Path:
    torch.save(WHOLE, folder / "m", _use_new_zipfile_serialization=False)
    return folder / "m"


def make_safetensors(folder: Path) -> Path:
    save_file({n: t.clone() for n, t in KEYS.items()}, folder / "m", metadata={"config": '{"n_head": 2}', "a": "b"})
    return folder / "m"


def make_modern(folder: Path) -> Path:
    change = {"n_layer": 1, "n_head": 2, "n_kv_head": 2, "n_embd": 4, "n_inner": 4, "vocab_size": 3}
    return tiny.save_modern(folder / "m", vocabulary={"a": 0, "é": 2}, **change)


def make_index(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    parts = {f"model-0000{n + 1}-of-00002.safetensors": dict(list(HF_KEYS.items())[n::2]) for n in range(2)}
    for name, part in parts.items():
        save_file(part, folder / name)
    where = {tensor: name for name, part in parts.items() for tensor in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"size": 9}, "weight_map": where}))
    return folder / "model.safetensors.index.json"


def make_config(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(HF_KEYS, folder / "model.safetensors")
    return folder / "config.json"


def metadata(r: random.Random, raw: bytes) -> bytes:
    """What modernize writes into the metadata of a file."""
    length = int.from_bytes(raw[:8], "little")
    plain = json.loads(raw[8 : 8 + length])
    plain["__metadata__"]["modernize"] = mutate_json(r, plain["__metadata__"]["modernize"].encode()).decode(
        "utf-8", "replace"
    )
    new = json.dumps(plain).encode()
    return len(new).to_bytes(8, "little") + new + raw[8 + length :]


@dataclass(frozen=True)
class Kind:
    """A good file, which of its files is mutated and how, and what judges the mutants; `few` are tried by default."""

    make: Callable[[Path], Path]
    mutations: tuple[Mutation, ...]
    judge: Callable[[Given, Given], bool]
    few: int
    folder: bool = False  # is opened, and not the file itself


KINDS = {
    "zip": Kind(make_zip, (*BYTES, change_record, change_record, swap_members, swap_names), as_the_original, 1500),
    "pickle": Kind(make_zip, (pickle_in_zip, pickle_in_zip, pickle_bytes_in_zip, members_of_zip), as_torch, 700),
    "legacy": Kind(make_legacy, (*BYTES, *[legacy_pickles] * 6, legacy_sizes), as_torch, 1000),
    "safetensors": Kind(make_safetensors, (*BYTES, *[header] * 9), as_safetensors, 1000),
    "modern": Kind(make_modern, (*[metadata] * 9, header), as_safetensors, 500),
    "index": Kind(make_index, (*BYTES, *[mutate_json] * 9), as_json, 700, folder=True),
    "config": Kind(make_config, (*BYTES, *[mutate_json] * 9), as_json, 700, folder=True),
}


@dataclass
class Tally:
    """How the mutants of a kind fared. `judged` of the accepted ones were accepted by the judge as well."""

    accepted: int = 0
    judged: int = 0
    refused: int = 0
    slowest: float = 0
    memory: int = 0  # KiB, that the hungriest has added

    def try_one(self, kind: Kind, path: Path, raw: bytes, original: Given) -> None:
        before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        found = None
        try:
            found = given(path, raw)
            converted(path)
        except InputRefused as error:
            assert error.sentence.strip()
            assert error.hint.strip()
            assert len(error.sentence + error.hint) < SENTENCE, error.sentence[:200]
        self.slowest = max(self.slowest, time.process_time() - begun)
        self.memory = max(self.memory, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        assert self.slowest < SECONDS
        assert self.memory < MEMORY
        self.accepted += found is not None
        self.refused += found is None
        if found is not None:
            self.judged += kind.judge(found, original)


def honest(kind: Kind, folder: Path) -> tuple[Path, Path, bytes, Given]:
    file = kind.make(folder)
    raw = file.read_bytes()
    path = folder if kind.folder else file
    original = given(path, raw)
    converted(path)
    return file, path, raw, original


@pytest.mark.parametrize("name", KINDS)
def test_a_mutant_is_refused_with_a_sentence_or_gives_what_it_says(tmp_path, capsys, name):
    kind, tally = KINDS[name], Tally()
    file, path, raw, original = honest(kind, tmp_path)
    for number in range(20_000 if LONG else kind.few):
        r = random.Random(f"{name} {number}")
        mutation = kind.mutations[number % len(kind.mutations)]
        file.write_bytes(mutant := mutation(r, raw))
        try:
            tally.try_one(kind, path, mutant, original)
        except BaseException as error:
            raise AssertionError(f"mutant {number} of {name}, by {mutation.__name__}: {error!r}") from error
    assert tally.refused
    assert tally.accepted
    assert capsys.readouterr() == ("", "")
    if LONG:
        with capsys.disabled():
            print(f"\n{name}: {tally}")  # noqa: T201


@pytest.mark.parametrize("name", ["zip", "legacy", "safetensors", "index", "config"])
def test_a_file_cut_short_at_any_byte_is_refused(tmp_path, name):
    kind = KINDS[name]
    file, path, raw, _ = honest(kind, tmp_path)
    for length in range(len(raw)):
        file.write_bytes(raw[:length])
        try:
            given(path, raw)
        except InputRefused as error:
            assert error.hint
        else:
            pytest.fail(f"{length} of {len(raw)} bytes were read")
