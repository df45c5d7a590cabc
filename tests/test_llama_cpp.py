"""A Llama export through llama.cpp: its converter's rules, its file, and its own arithmetic. Skips without it."""

import json

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

import modernize
from modernize.loading import load
from modernize.rewrite.silu import with_silu

gguf = pytest.importorskip("gguf")
llama_cpp = pytest.importorskip("llama_cpp")

F32 = 0  # of its types


def permuted(rows, heads):
    """As llama.cpp's converter brings the halves of a Llama's queries and keys back to neighbours."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def as_gguf(folder, path):
    """The folder as a GGUF file without a vocabulary, as that converter writes it."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        rows = tensor.numpy()
        if ".q_proj." in name:
            rows = permuted(rows, config["num_attention_heads"])
        if ".k_proj." in name:
            rows = permuted(rows, config["num_key_value_heads"])
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(rows))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "change", [{}, {"tied": False}, {"n_kv_head": 2, "rope_base": 500.0}, {"biases": ("q", "k", "up")}]
)
def test_llama_cpp_computes_what_the_model_does(tmp_path, change):
    new = tiny.save_modern(tmp_path / "new.safetensors", **{"biases": (), **change})
    modernize.export(new, tmp_path / "out", to="llama")
    model = load(new)
    state, config = with_silu(model.to_state(), model.config)
    ids = torch.randint(0, 61, (1, 16), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = type(model).from_state(config, state)(ids)[0]
    theirs = llama_cpp.Llama(
        str(as_gguf(tmp_path / "out", tmp_path / "model.gguf")),
        n_ctx=64, logits_all=True, type_k=F32, type_v=F32, n_threads=1, verbose=False,
    )  # fmt: skip
    theirs.eval(ids[0].tolist())
    found = torch.from_numpy(np.array(theirs.scores[:16, :61]))
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-3)
    theirs.close()
