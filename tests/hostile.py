"""Parts of hostile files: pickles put together by hand, and good files that they stand in."""

import json
import struct
import time
import zipfile

import pytest
import tiny
import torch
from safetensors.torch import save_file

from modernize.checkpoint import open_checkpoint
from modernize.errors import InputRefused
from modernize.facts import Facts
from modernize.recognise import recognise

SPEC = tiny.spec(n_layer=1, n_head=2, n_embd=4, n_inner=4, block_size=2, vocab_size=3)
KEYS = tiny.as_dialect(tiny.jittered(SPEC), SPEC, tiny.dialect("nanogpt"))
FACTS = Facts(n_head=2, activation="gelu")
PLACEHOLDER = "what is put here instead"
SECONDS, SENTENCE = 5.0, 4000


def text(word):
    raw = word.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def named(module, name):
    return f"c{module}\n{name}\n".encode()


def call(module, name, *args):
    return named(module, name) + b"(" + b"".join(args) + b"tR"


def put(number):
    return b"r" + struct.pack("<I", number)


def get(number):
    return b"j" + struct.pack("<I", number)


def integer(number):
    raw = number.to_bytes(max(1, number.bit_length() // 8 + 1), "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path, parts):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts:
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def file_with(path, ops, *, beside=PLACEHOLDER, legacy=False, **more):
    """A good model, with these instructions where a value beside it stands; the checksums are right."""
    torch.save({"model": KEYS, **more, "beside": beside}, path, _use_new_zipfile_serialization=not legacy)
    if legacy:
        path.write_bytes(path.read_bytes().replace(text(PLACEHOLDER), ops, 1))
        return path
    return write_zip(path, [(n, d.replace(text(PLACEHOLDER), ops, 1)) for n, d in members(path).items()])


def refused(path, match=None, *, error=InputRefused):
    """The sentence of a refusal that comes soon."""
    begun = time.process_time()
    with pytest.raises(error, match=match) as caught:
        recognise(open_checkpoint(path), FACTS)
    assert time.process_time() - begun < SECONDS
    assert caught.value.hint
    assert len(caught.value.sentence + caught.value.hint) < SENTENCE
    return caught.value.sentence


def read(path):
    """What a good model gives, whatever stands beside it; soon."""
    begun = time.process_time()
    state = recognise(open_checkpoint(path), FACTS).state()
    assert time.process_time() - begun < SECONDS
    assert torch.equal(state["wte.weight"], KEYS["transformer.wte.weight"])
    return open_checkpoint(path)


PRIME = 2**61 - 1  # what Python's hash of a whole number is taken modulo
BIG = b"(" + b"".join(text(f"{n}") + b"N" for n in range(50_000)) + b"d" + put(1)  # a dictionary, remembered
LONG = text("x" * 1_000_000) + put(1)
OBJECT = named("train", "Config") + b")\x81"


def storage(kind="FloatStorage", key=b"", numel=12):
    reference = text("storage") + named("torch", kind) + (key or text("0")) + text("cpu")
    return b"(" + reference + (numel if isinstance(numel, bytes) else integer(numel)) + b"tQ"


def numbers(values):
    return b"(" + b"".join(v if isinstance(v, bytes) else integer(v) for v in values) + b"t"


def tensor(*, held=None, offset=0, size=(3, 4), stride=(4, 1), function="_rebuild_tensor_v2"):
    offset = offset if isinstance(offset, bytes) else integer(offset)
    size = size if isinstance(size, bytes) else numbers(size)
    stride = stride if isinstance(stride, bytes) else numbers(stride)
    return call("torch._utils", function, held or storage(), offset, size, stride, b"\x89", b"}")


def nested(times, before, after, inner=b"N"):
    return before * times + inner + after * times


def array(order):
    kind = call("numpy", "dtype", text("f8"), b"\x89", b"\x88") + b"(K\x03" + text(order) + b"NNNJ\xff\xff\xff\xff"
    kind += b"J\xff\xff\xff\xffK\x00tb"
    made = call("numpy._core.multiarray", "_reconstruct", named("numpy", "ndarray"), b"K\x00\x85", b"C\x01b")
    return made + b"(K\x01" + numbers([125_000]) + kind + b"\x89" + get(1) + b"tb"


def fields(values):
    return b"}(" + b"".join(text(name) + value for name, value in values.items()) + b"u"


def module(modules=b"}", parameters=b"}", **more):
    state = {"_parameters": parameters, "_modules": modules, "_buffers": b"}", **more}
    return named("train", "Model") + b")\x81" + fields(state) + b"b"


def hf_folder(folder, **config):
    folder.mkdir()
    keys = tiny.as_dialect(tiny.jittered(SPEC), SPEC, tiny.dialect("gpt2"))
    save_file({n: t.clone() for n, t in keys.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 2, **config}))
    return folder
