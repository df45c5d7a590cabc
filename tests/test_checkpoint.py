"""Reading: formats, wrappers, prefixes; and a sentence for everything that is no checkpoint."""

import collections
import gzip
import io
import json
import os
import pickle
import zipfile
from pathlib import PurePosixPath

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import save_file, save_model

from modernize.checkpoint import files_of, numpy_values, open_checkpoint
from modernize.errors import AmbiguousInput, InputRefused, UnknownLayout, UnreadableFile, UnsafeFile
from modernize.facts import Facts
from modernize.recognise import recognise
from modernize.stored import stored_in

SPEC = tiny.spec()
STATE = tiny.jittered(SPEC)
KEYS = tiny.as_dialect(STATE, SPEC, tiny.dialect("nanogpt"))
FACTS = Facts(n_head=4, activation="gelu")


def state_of(path, **kw):
    return recognise(open_checkpoint(path, **kw), FACTS).state()


def same(state):
    return list(state) == list(STATE) and all(torch.equal(state[n], STATE[n]) for n in STATE)


def prefixed(prefix):
    return {prefix + name: tensor for name, tensor in KEYS.items()}


# ------------------------------------------------------------------------------------------ what is read


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", ["m.pt", "m.safetensors", "m"], ids=str)
def test_torch_files_by_content_whatever_their_name(tmp_path, legacy, name):
    torch.save({"model": KEYS}, tmp_path / name, _use_new_zipfile_serialization=not legacy)
    checkpoint = open_checkpoint(tmp_path / name)
    assert checkpoint.format == ("torch legacy" if legacy else "torch zip")
    assert same(state_of(tmp_path / name))


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
def test_safetensors_by_content(tmp_path, name):
    save_file({n: t.clone() for n, t in KEYS.items()}, tmp_path / name)
    assert open_checkpoint(tmp_path / name).format == "safetensors"
    assert same(state_of(tmp_path / name))


def test_safetensors_whose_shared_tensor_was_left_out(tmp_path):
    """`save_model` keeps one name of a tied pair, not always the embedding's, and notes the other in the metadata."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(2, 3, bias=False)
            self.b = torch.nn.Linear(2, 3, bias=False)
            self.b.weight = self.a.weight

    save_model(Tied(), str(tmp_path / "m.safetensors"))
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    assert set(checkpoint.tensors) == {"a.weight", "b.weight"}
    assert checkpoint.equal("a.weight", "b.weight")
    assert torch.equal(checkpoint.read("a.weight"), checkpoint.read("b.weight"))


def test_names_shapes_and_dtypes_are_known_without_reading(tmp_path):
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}, tmp_path / "m.safetensors")
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    assert {n: (i.shape, i.dtype) for n, i in checkpoint.tensors.items()} == {
        "a": ((2, 3), "float32"),
        "b": ((4,), "bfloat16"),
    }


@pytest.mark.parametrize("wrapper", ["model", "model_state_dict", "model_state", "state_dict", ""])
def test_wrappers(tmp_path, wrapper):
    torch.save({wrapper: KEYS, "epoch": 3} if wrapper else KEYS, tmp_path / "m.pt")
    assert same(state_of(tmp_path / "m.pt"))


@pytest.mark.parametrize(
    "prefix", ["_orig_mod.", "module.", "module.module.", "_orig_mod.module.", "module._orig_mod."]
)
def test_prefixes_in_front(tmp_path, prefix):
    torch.save({"model": prefixed(prefix)}, tmp_path / "m.pt")
    assert same(state_of(tmp_path / "m.pt"))


def test_a_prefix_in_the_middle_of_a_key(tmp_path):
    keys = {name.replace(".h.0.", ".h.0._orig_mod."): tensor for name, tensor in KEYS.items()}
    torch.save(keys, tmp_path / "m.pt")
    assert same(state_of(tmp_path / "m.pt"))


def test_keys_that_become_one_are_both_named(tmp_path):
    torch.save({**KEYS, "module.transformer.wte.weight": torch.zeros(61, 32)}, tmp_path / "m.pt")
    with pytest.raises(AmbiguousInput, match=r"transformer\.wte\.weight and module\.transformer\.wte\.weight"):
        open_checkpoint(tmp_path / "m.pt")


def test_trained_or_averaged_weights(tmp_path):
    other = tiny.as_dialect(tiny.jittered(SPEC, seed=9), SPEC, tiny.dialect("nanogpt"))
    torch.save({"model": other, "ema": KEYS}, tmp_path / "m.pt")
    assert not same(state_of(tmp_path / "m.pt"))
    assert same(state_of(tmp_path / "m.pt", weights="ema"))
    torch.save({"model": KEYS}, tmp_path / "n.pt")
    with pytest.raises(UnreadableFile, match="no averaged weights"):
        open_checkpoint(tmp_path / "n.pt", weights="ema")


def test_a_single_set_has_no_averaged_weights(tmp_path):
    save_file({n: t.clone() for n, t in KEYS.items()}, tmp_path / "m.safetensors")
    for path in (tmp_path / "m.safetensors", hf_folder(tmp_path / "hf")):
        with pytest.raises(UnreadableFile, match="no averaged weights"):
            open_checkpoint(path, weights="ema")


def test_tensors_that_are_not_among_the_weights_are_told(tmp_path):
    extra = {"a": torch.ones(3)}
    weights = {**KEYS, "lora": extra, "list": [torch.ones(1)]}
    beside = {"more": torch.ones(2), "adapter": extra, "loss": torch.tensor(1.0), "ema": KEYS, "config": {}}
    torch.save({"model": weights, **beside}, tmp_path / "m.pt")
    assert open_checkpoint(tmp_path / "m.pt").warnings == (
        "tensors that are not among the weights are ignored: more, adapter, model.lora, model.list",
    )


@pytest.mark.parametrize("made", [lambda: torch.eye(3).to_sparse(), lambda: torch.ones(3, device="meta")])
def test_tensors_without_values_are_refused(tmp_path, made):
    torch.save({**KEYS, "transformer.wpe.weight": made()}, tmp_path / "m.pt")
    with pytest.raises(UnreadableFile, match=r"transformer\.wpe\.weight"):
        open_checkpoint(tmp_path / "m.pt")


@pytest.mark.parametrize("stoi", [{0: "a"}, {"a": "x"}, {"a": -5}, {"a": 0.5}, [], {}, 7])
def test_what_is_no_vocabulary_is_none(tmp_path, stoi):
    torch.save({"model": KEYS, "stoi": stoi, "itos": {0: b"a"}}, tmp_path / "m.pt")
    assert open_checkpoint(tmp_path / "m.pt").vocabulary == {}


def test_a_name_that_is_no_utf8(tmp_path):
    torch.save(KEYS, tmp_path / "m.pt")
    save_file({n: t.clone() for n, t in KEYS.items()}, tmp_path / "m.safetensors")
    for name in ("m.pt", "m.safetensors"):
        assert same(state_of((tmp_path / name).rename(tmp_path / os.fsdecode(b"b\xffd" + name.encode()))))


def test_two_sets_of_weights_are_ambiguous(tmp_path):
    torch.save({"model": KEYS, "state_dict": KEYS}, tmp_path / "m.pt")
    with pytest.raises(AmbiguousInput, match="model, state_dict"):
        open_checkpoint(tmp_path / "m.pt")


@pytest.mark.parametrize(
    "notes",
    [
        {"stoi": {"a": 0, "b": 1}},
        {"chars": "ab"},
        {"config": {"chars": ["a", "b"]}},
        {"itos": {0: "a", 1: "b"}},
        {"itos": ["a", "b"]},
    ],
)
def test_a_vocabulary_inside(tmp_path, notes):
    torch.save({"model": KEYS, **notes}, tmp_path / "m.pt")
    assert open_checkpoint(tmp_path / "m.pt").vocabulary == {"a": 0, "b": 1}


def test_sha256_is_that_of_the_file(tmp_path):
    import hashlib

    torch.save(KEYS, tmp_path / "m.pt")
    assert open_checkpoint(tmp_path / "m.pt").sha256() == hashlib.sha256((tmp_path / "m.pt").read_bytes()).hexdigest()


# ------------------------------------------------------------------------------------------ a Hugging Face folder


def hf_folder(path, *, weights="model.safetensors", seed=0, **config):
    spec = tiny.spec(activation="gelu_tanh")
    keys = tiny.as_dialect(tiny.jittered(spec, seed), spec, tiny.dialect("gpt2"))
    keys.pop("lm_head.weight")
    path.mkdir(exist_ok=True)
    plain = {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 16, "vocab_size": 61}
    plain |= {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
    (path / "config.json").write_text(json.dumps({**plain, **config}))
    if weights.endswith(".bin"):
        torch.save(keys, path / weights)
    else:
        save_file({n: t.clone() for n, t in keys.items()}, path / weights)
    return path


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder(tmp_path, weights):
    found = recognise(open_checkpoint(hf_folder(tmp_path / "hf", weights=weights)))
    assert (found.dialect.name, found.spec.activation, found.spec.n_head, found.spec.tied) == (
        "gpt2",
        "gelu_tanh",
        4,
        True,
    )
    assert found.warnings == ()
    assert same(found.state())


def test_both_kinds_of_weights_are_told(tmp_path):
    hf_folder(tmp_path / "hf", weights="pytorch_model.bin", seed=9)
    hf_folder(tmp_path / "hf")
    found = recognise(open_checkpoint(tmp_path / "hf"))
    assert "model.safetensors was read" in found.warnings[0]
    assert same(found.state())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "llama"}, "'llama'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"activation_function": "quick_gelu"}, "quick_gelu"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
    ],
)
def test_a_folder_that_cannot_be_carried_over(tmp_path, config, said):
    with pytest.raises(InputRefused, match=said):
        recognise(open_checkpoint(hf_folder(tmp_path / "hf", **config)))


def test_a_folder_without_parts(tmp_path):
    with pytest.raises(UnreadableFile, match=r"without config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnreadableFile, match=r"none of model\.safetensors, .*pytorch_model\.bin"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UnreadableFile, match="no index of shards"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(UnreadableFile, match="cannot be read"):
        open_checkpoint(tmp_path)


def test_a_flipped_bit_is_found_by_the_checksum(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"model": KEYS, "model_args": tiny.model_args(SPEC)}, path)
    raw = bytearray(path.read_bytes())
    at = raw.index(KEYS["transformer.h.1.mlp.c_fc.weight"].numpy().tobytes())
    raw[at + 5] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UnreadableFile, match="damaged"):
        state_of(path)


def test_a_file_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"model": KEYS, "model_args": tiny.model_args(SPEC)}, tmp_path / "m.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert same(state_of(tmp_path / "m.pt"))


@pytest.mark.parametrize("old", [False, True], ids=["today's names", "numpy 1"])
def test_numpy_paths_and_defaultdicts_beside_the_weights(tmp_path, old):
    beside = {
        "best": np.float64(1.5), "iter_num": np.int64(3), "flag": np.bool_(True), "out": PurePosixPath("/data/out"),
        "rng": np.random.RandomState(0).get_state(), "log": collections.defaultdict(list, {"a": [1.0]}),
        "table": np.arange(6, dtype=">i4").reshape(2, 3),
    }  # fmt: skip
    path = tmp_path / "m.pt"
    torch.save({"model": KEYS, "config": {**tiny.model_args(SPEC), "n_head": np.int64(4)}, **beside}, path)
    if old:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
        members = {n: b.replace(b"numpy._core.multiarray", b"numpy.core.multiarray") for n, b in members.items()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    assert same(state_of(path))
    settings = open_checkpoint(path).settings
    assert settings["config"]["n_head"] == 4
    assert {n: settings[""][n] for n in ("best", "iter_num", "flag", "out")} == {
        "best": 1.5, "iter_num": 3, "flag": True, "out": "/data/out",
    }  # fmt: skip


def test_weights_that_are_numpy_arrays(tmp_path):
    torch.save({"model": {n: t.numpy() for n, t in KEYS.items()}}, tmp_path / "m.pt")
    assert same(state_of(tmp_path / "m.pt"))


@pytest.mark.parametrize(
    "state", [(1, (2,), None, False, b"x"), (1, (9, 9), numpy_values.DType("f4"), False, b"1234"), 5]
)
def test_an_array_that_is_none_holds_nothing(state):
    array = numpy_values.Array()
    array.set_state(state)
    assert array.value is None
    assert array.as_view() is None
    assert numpy_values.scalar((numpy_values.DType("O8"), b"12345678")) is None
    assert numpy_values.scalar((numpy_values.DType("f8"), b"1234")) is None


def sharded(folder, *, kind="safetensors", change=None):
    """A Hugging Face folder whose tensors are dealt out to two files."""
    hf_folder(folder)
    (folder / "model.safetensors").unlink()
    keys = tiny.as_dialect(tiny.jittered(SPEC), SPEC, tiny.dialect("gpt2"))
    names = [f"model-0000{n}-of-00002.{kind}" for n in (1, 2)]
    parts = {name: dict(list(keys.items())[n::2]) for n, name in enumerate(names)}
    for name, part in parts.items():
        own = {n: t.clone() for n, t in part.items()}
        save_file(own, folder / name) if kind == "safetensors" else torch.save(own, folder / name)
    where = {tensor: name for name, part in parts.items() for tensor in part}
    index = "model.safetensors.index.json" if kind == "safetensors" else "pytorch_model.bin.index.json"
    if change:
        change(where)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_folder_in_shards_is_the_whole_one(tmp_path, kind):
    path = sharded(tmp_path / "hf", kind=kind)
    checkpoint = open_checkpoint(path)
    whole = recognise(open_checkpoint(hf_folder(tmp_path / "whole")))
    found = recognise(checkpoint)
    assert found.spec == whole.spec
    assert all(torch.equal(t, whole.state()[n]) for n, t in found.state().items())
    assert len(files_of(path)) == 4
    assert len(checkpoint.sha256()) == 64


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda where: where.update({"h.9.x": "model-00003-of-00003.safetensors"}), "model-00003.*not there"),
        (lambda where: where.update({"h.9.x": "model-00001-of-00002.safetensors"}), r"h\.9\.x, and it doesn't"),
        (lambda where: where.pop("transformer.wpe.weight"), r"wpe\.weight, which the index doesn't say"),
        (lambda where: where.update({"transformer.wpe.weight": "../x.safetensors"}), "no file name"),
        (lambda where: where.update({"transformer.wpe.weight": 5}), "no file name"),
        (lambda where: where.clear(), "names no tensors"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path, change, said):
    with pytest.raises(UnreadableFile, match=said):
        open_checkpoint(sharded(tmp_path / "hf", change=change))


@pytest.mark.parametrize("place", ["snapshots/0123", "snapshots/0123/ckpt-10", "local"])
def test_shards_that_are_links_stay_in_the_folder_or_lead_into_the_hub_cache(tmp_path, place):
    """The hub keeps files under their hashes, and links to them; any other way out of the folder is refused."""
    whole = sharded(tmp_path / "whole")
    cached, plain, blobs = tmp_path / place, tmp_path / "plain", tmp_path / "blobs"
    for folder in (cached, plain, blobs):
        folder.mkdir(parents=True)
    for number, file in enumerate(sorted(whole.iterdir())):
        blob = blobs / f"{number:064x}"
        blob.write_bytes(file.read_bytes())
        (cached / file.name).symlink_to(os.path.relpath(blob, cached))
        (plain / file.name).symlink_to(file)
    assert same(recognise(open_checkpoint(cached)).state())
    linked = tmp_path / "linked"
    linked.symlink_to(whole)
    assert same(recognise(open_checkpoint(linked)).state())
    with pytest.raises(UnreadableFile, match="leads out of its folder"):
        open_checkpoint(plain)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path, name):
    folder = sharded(tmp_path / "hf") if name.endswith("index.json") else hf_folder(tmp_path / "hf")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UnreadableFile):
        open_checkpoint(folder)


def test_code_in_a_folder_is_never_run(tmp_path):
    hf_folder(tmp_path / "hf", auto_map={"AutoModelForCausalLM": "evil.Model"})
    for name in ("evil.py", "config.py"):
        (tmp_path / "hf" / name).write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    recognise(open_checkpoint(tmp_path / "hf"))
    assert not (tmp_path / "canary").exists()


# ------------------------------------------------------------------------------------------ what is refused


class Evil:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return open, (str(self.canary), "w")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_code_in_a_file_is_not_run(tmp_path, legacy):
    evil = {"model": KEYS, "config": Evil(tmp_path / "canary")}
    torch.save(evil, tmp_path / "m.pt", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UnsafeFile, match="open"):
        open_checkpoint(tmp_path / "m.pt")
    assert not (tmp_path / "canary").exists()


def zip_of(**members):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return raw.getvalue()


STRANGERS = {
    "empty": (b"", "empty"),
    "text": (b"hello, this is my model\n", "text file"),
    "html": (b"<!DOCTYPE html><html></html>", "HTML"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git-LFS"),
    "html in capitals": (b"\n<HTML><HEAD>", "HTML"),
    "html doctype": (b"<!Doctype html>", "HTML"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML"),
    "json": (b'{"error": "Repository not found"}', "JSON"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(600), "zstd"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(600), "7z"),
    "rar": (b"Rar!\x1a\x07\x01\0" + bytes(99), "rar"),
    "npy": (b"\x93NUMPY\x01\0" + bytes(99), "numpy array"),
    "ggml": (b"lmgg" + bytes(99), "GGML"),
    "onnx": (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0" + b"\0:\x99" * 99, "ONNX"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(99), "TensorFlow Lite"),
    "npz": (zip_of(**{"wte.weight.npy": b"x"}), "numpy archive"),
    "keras": (zip_of(**{"metadata.json": b"{}", "model.weights.h5": b"x"}), "Keras"),
    "torch.export": (zip_of(**{"ep/data/weights/weight_0": b"x", "ep/version": b"1"}), r"torch\.export"),
    "gguf": (b"GGUF" + bytes(60), "GGUF"),
    "gzip": (gzip.compress(b"x" * 100), "gzip"),
    "llm.c": ((20240326).to_bytes(4, "little") + bytes(1020), r"llm\.c"),
    "other zip": (zip_of(**{"a/b.txt": b"x"}), "something else"),
    "torchscript": (zip_of(**{"m/data.pkl": b"", "m/constants.pkl": b"", "m/code/x.py": b""}), "TorchScript"),
    "pickle": (pickle.dumps({"a": 1}), "bare pickle"),
    "noise": (bytes(range(256)) * 4, "neither"),
    "seven bytes": (b"\x10\0\0\0\0\0\0", "neither"),
}


@pytest.mark.parametrize(("data", "said"), STRANGERS.values(), ids=STRANGERS)
@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
def test_other_kinds_of_files_are_named(tmp_path, data, said, name):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UnreadableFile, match=said):
        open_checkpoint(tmp_path / name)


FOLDERS = {
    "adapter_config.json": "PEFT adapter",
    "__0_0.distcp": "distributed checkpoint",
    "zero_to_fp32.py": "ZeRO",
    "zero_pp_rank_0_mp_rank_00_optim_states.pt": "ZeRO",
    "_CHECKPOINT_METADATA": "Orbax",
    "flax_model.msgpack": "Flax",
    "tf_model.h5": "TensorFlow",
    "model.ckpt.index": "TensorFlow",
    "model.ckpt-1000.index": "TensorFlow",
}


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("config", [True, False])
def test_other_kinds_of_folders_are_named(tmp_path, name, config):
    (tmp_path / name).write_bytes(b"x")
    if config:
        (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnreadableFile, match=FOLDERS[name]):
        open_checkpoint(tmp_path)


def test_the_file_in_a_folder_is_named(tmp_path):
    torch.save(KEYS, tmp_path / "ckpt.pt")
    with pytest.raises(UnreadableFile) as caught:
        open_checkpoint(tmp_path)
    assert str(tmp_path / "ckpt.pt") in caught.value.hint


def test_no_path_at_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableFile, match="the path is empty"):
        open_checkpoint("")


def test_one_shard_and_an_index_are_told_what_they_are(tmp_path):
    folder = sharded(tmp_path / "hf")
    for name, said in (
        ("model-00001-of-00002.safetensors", "one of 2 shards"),
        ("model.safetensors.index.json", "index"),
    ):
        with pytest.raises(UnreadableFile, match=said) as caught:
            open_checkpoint(folder / name)
        assert str(folder) in caught.value.hint


@pytest.mark.parametrize("place", ["generator", "network", "gpt", "state.model", "a.b.c", "ema"])
def test_weights_under_any_key_where_there_is_one(tmp_path, place):
    held = KEYS
    for key in reversed(place.split(".")):
        held = {key: held}
    optimizer = {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1}]}
    torch.save({**held, "config": {"n_head": 4}, "step": 3, "optimizer": optimizer, "loss": torch.tensor(1.0)},
        tmp_path / "m.pt")  # fmt: skip
    assert same(state_of(tmp_path / "m.pt"))
    checkpoint = open_checkpoint(tmp_path / "m.pt")
    assert f"the weights were taken from {place}" in checkpoint.warnings[0]
    assert checkpoint.settings["config"] == {"n_head": 4}


def test_several_unknown_keys_are_listed(tmp_path):
    torch.save({"generator": KEYS, "nested": {"critic": KEYS}}, tmp_path / "m.pt")
    with pytest.raises(AmbiguousInput, match=r"generator, nested\.critic") as caught:
        open_checkpoint(tmp_path / "m.pt")
    assert "torch.save(ckpt['generator'], PATH)" in caught.value.hint


def test_averaged_weights_without_names_are_told(tmp_path):
    torch.save({"model": KEYS, "ema": {"decay": 0.99, "shadow_params": list(KEYS.values())}}, tmp_path / "m.pt")
    assert same(state_of(tmp_path / "m.pt"))
    with pytest.raises(UnreadableFile, match=r"ema\.shadow_params as a list"):
        open_checkpoint(tmp_path / "m.pt", weights="ema")


def test_a_deque_and_a_slice_beside_the_weights(tmp_path):
    beside = {
        "losses": collections.deque([1.0, 2.0], maxlen=5),
        "part": slice(1, 2),
        "count": collections.Counter("ab"),
    }
    torch.save({"model": KEYS, **beside}, tmp_path / "m.pt")
    assert same(state_of(tmp_path / "m.pt"))


def test_nothing_there(tmp_path):
    with pytest.raises(UnreadableFile, match=r"no file .*gone\.pt"):
        open_checkpoint(tmp_path / "gone.pt")


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.99])
def test_files_cut_short(tmp_path, kind, share):
    path = tmp_path / "m"
    if kind == "safetensors":
        save_file({n: t.clone() for n, t in KEYS.items()}, path)
    else:
        torch.save(KEYS, path, _use_new_zipfile_serialization=kind == "zip")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UnreadableFile, match="damaged"):
        open_checkpoint(path)


def test_no_dictionary_and_no_weights(tmp_path):
    torch.save(torch.ones(3), tmp_path / "m.pt")
    with pytest.raises(UnreadableFile, match="one Tensor"):
        open_checkpoint(tmp_path / "m.pt")
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "m.pt")
    with pytest.raises(UnreadableFile, match="'epoch', 'lr'"):
        open_checkpoint(tmp_path / "m.pt")


@pytest.mark.parametrize("extra", [torch.ones(3), np.ones(3)], ids=["tensor", "array"])
@pytest.mark.parametrize("group", ["model_args", "config", "hparams"])
def test_settings_with_a_tensor_among_them(tmp_path, group, extra):
    torch.save({"model": KEYS, group: {"n_head": 4, "activation": "relu", "class_weight": extra}}, tmp_path / "m.pt")
    checkpoint = open_checkpoint(tmp_path / "m.pt")
    assert checkpoint.settings[group] == {"n_head": 4, "activation": "relu"}
    assert recognise(checkpoint).spec.activation == "relu"


@pytest.mark.parametrize("itos", [{0: ["a"], 1: ["b"]}, {0: {}, 1: []}, [["a"]]])
def test_tokens_that_are_no_strings_are_no_vocabulary(tmp_path, itos):
    torch.save({"model": KEYS, "itos": itos}, tmp_path / "m.pt")
    assert open_checkpoint(tmp_path / "m.pt").vocabulary == {}


def test_json_that_nests_without_end(tmp_path):
    deep = "[" * 200_000
    folder = hf_folder(tmp_path / "hf")
    (folder / "config.json").write_text(deep)
    with pytest.raises(UnreadableFile, match=r"config\.json cannot be read"):
        open_checkpoint(folder)
    save_file({n: t.clone() for n, t in KEYS.items()}, tmp_path / "m.safetensors", metadata={"modernize": deep})
    with pytest.raises(UnreadableFile, match="cannot be understood"):
        stored_in(open_checkpoint(tmp_path / "m.safetensors"))


def test_a_model_type_counts_before_names(tmp_path):
    folder = hf_folder(tmp_path / "hf", model_type="llama")
    save_file({"model.embed_tokens.weight": torch.ones(61, 32), "lm_head.weight": torch.ones(61, 32)},
              folder / "model.safetensors")  # fmt: skip
    with pytest.raises(UnknownLayout, match=r"'llama' model by its config\.json"):
        recognise(open_checkpoint(folder))


def test_the_dialect_option_overrules_the_model_type_aloud(tmp_path):
    folder = hf_folder(tmp_path / "hf", model_type="my_gpt")
    with pytest.raises(UnknownLayout, match="'my_gpt'") as caught:
        recognise(open_checkpoint(folder))
    assert "--dialect" in caught.value.hint
    found = recognise(open_checkpoint(folder), Facts(dialect="gpt2"))
    assert same(found.state())
    assert any("model_type 'my_gpt'; --dialect gpt2 was taken" in warning for warning in found.warnings)
    hf_folder(tmp_path / "hf", model_type="my_gpt", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(UnknownLayout, match="scale_attn_by_inverse_layer_idx"):
        recognise(open_checkpoint(folder), Facts(dialect="gpt2"))
