"""The reader against the libraries: on every good file it gives what torch and safetensors give, tensor by tensor."""

import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
import tiny
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from modernize.checkpoint import open_checkpoint
from modernize.checkpoint.safetensors_file import DTYPES
from modernize.dialects import DIALECTS

BASE = torch.arange(2 * 3 * 4, dtype=torch.float32).reshape(2, 3, 4)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
OTHERS = (torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2)
SHARED = torch.arange(12.0)
VIEWS = {
    "transposed": BASE[0].t(),
    "permuted": BASE.permute(2, 0, 1),
    "slice": BASE[:, 1:, ::2],
    "row": BASE[1],
    "column": BASE[0][:, 2],
    "tied one": SHARED,
    "tied two": SHARED,
    "half": SHARED[6:],
    "ones expanded": torch.ones(3)[None].expand(1, 3),
    "empty": torch.empty(0, 5),
    "scalar": torch.tensor(1.5),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
    "many axes": torch.ones(1, 2, 1, 2, 1, 2, 1),
}


def by_dtype():
    return {str(dtype): BASE.to(dtype) for dtype in (*FLOATS, *WHOLE, *OTHERS)}


def judged(path, wanted):
    """What the reader gives is what the judge gives, whole and row by row, and in float64 without torch."""
    source = open_checkpoint(path).source
    assert list(source.tensors) == list(wanted)
    for name, tensor in wanted.items():
        ours = source.read(name)
        assert (ours.dtype, ours.shape) == (tensor.dtype, tensor.shape)
        assert source.tensors[name].shape == tuple(tensor.shape)
        assert raw(ours) == raw(tensor)
        assert ours.is_contiguous()
        for first, last in ((0, 1), (1, len(tensor))) if tensor.ndim and len(tensor) else ():
            assert raw(source.rows(name, first, last)) == raw(tensor[first:last])
        if tensor.dtype in (*FLOATS, torch.int64, torch.uint8, torch.bool):
            assert np.array_equal(source.array(name), tensor.detach().double().numpy(), equal_nan=True)
    names = [name for name, tensor in wanted.items() if tensor.ndim][:20]
    for one in names:
        for other in names:
            if source.tensors[one] == source.tensors[other]:
                assert source.equal(one, other) == (raw(wanted[one]) == raw(wanted[other]))


def raw(tensor):
    storage = tensor.detach().clone(memory_format=torch.contiguous_format).untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("held", [by_dtype(), VIEWS], ids=["dtypes", "views"])
def test_torch_files_as_torch_reads_them(tmp_path, held, protocol, legacy):
    path = tmp_path / "m.pt"
    torch.save(held, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    judged(path, held)
    if protocol == 2 and not (legacy and "torch.uint16" in held):  # which torch's own restricted reader doesn't read
        judged(path, torch.load(path, weights_only=True))


@pytest.mark.parametrize("name", [dialect.name for dialect in DIALECTS])
def test_every_dialect_as_torch_reads_it(tmp_path, name):
    spec = tiny.spec()
    keys = tiny.as_dialect(tiny.jittered(spec), spec, tiny.dialect(name))
    torch.save(OrderedDict(keys), tmp_path / "m.pt")
    judged(tmp_path / "m.pt", torch.load(tmp_path / "m.pt", weights_only=True))


def test_a_file_with_large_storages_and_alignment(tmp_path):
    with torch.utils.serialization.config.patch("save.storage_alignment", 4096):
        torch.save({"a": torch.randn(300, 70), "b": torch.randn(5)}, tmp_path / "m.pt")
    judged(tmp_path / "m.pt", torch.load(tmp_path / "m.pt", weights_only=True))


def test_safetensors_as_safetensors_reads_them(tmp_path):
    held = {**by_dtype(), **{name: tensor.detach().clone().contiguous() for name, tensor in VIEWS.items()}}
    held.pop("torch.complex128")  # which the format lacks
    save_file(held, tmp_path / "m.safetensors", metadata={"format": "pt", "note": "ä\n"})
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        wanted = {name: file.get_tensor(name) for name in open_checkpoint(tmp_path / "m.safetensors").source.tensors}
        assert set(wanted) == set(file.keys())
        assert open_checkpoint(tmp_path / "m.safetensors").metadata == file.metadata()
    judged(tmp_path / "m.safetensors", wanted)
    assert set(DTYPES.values()) >= {name.removeprefix("torch.") for name in by_dtype()} - {"complex128"}


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_inspect_loads_no_torch(tmp_path, kind):
    spec = tiny.spec()
    keys = tiny.as_dialect(tiny.jittered(spec), spec, tiny.dialect("nanogpt"))
    path = tmp_path / f"m.{kind}"
    torch.save({"model": keys, "model_args": tiny.model_args(spec)}, path) if kind == "pt" else save_file(
        {name: tensor.clone() for name, tensor in keys.items()}, path
    )
    code = (
        "import sys, modernize; "
        f"print(modernize.inspect({str(path)!r}, facts=modernize.Facts(n_head=4, activation='gelu')).dialect, "
        "'torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "nanogpt False\n"
