"""DATA in all its forms, and tokenizers in the order in which they are looked for."""

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from modernize.data import IGNORED, Corpus, load_corpus, pydoc_text, windows
from modernize.errors import BadData
from modernize.measure import doubts_of
from modernize.text import _pieces, encode_file
from modernize.tokenizer import BytesTokenizer, VocabularyTokenizer, find_tokenizer


def load(path, vocab_size=256, tokenizer=BytesTokenizer, **kw):
    return load_corpus(path, tokenizer=tokenizer, vocab_size=vocab_size, **kw)


def cut(ids, context):
    return windows(ids, context, vocab_size=256, name="data")


# ------------------------------------------------------------------------------------------ forms of DATA


def test_text_is_split_nine_to_one(tmp_path):
    (tmp_path / "a.txt").write_text("abcdefghij" * 10)
    corpus = load(tmp_path / "a.txt")
    assert (len(corpus.train), len(corpus.val)) == (90, 10)
    assert bytes(corpus.val.tolist()) == b"abcdefghij"
    assert len(corpus.windows("all", 9, vocab_size=256)) == 11


def test_pydoc_is_there():
    corpus = load("pydoc")
    text = pydoc_text().encode()
    assert len(text) > 300_000
    assert bytes(corpus.val[:20].tolist()) == text[int(0.9 * len(text)) :][:20]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_bin(tmp_path, dtype):
    np.arange(100, dtype=dtype).tofile(tmp_path / "a.bin")
    corpus = load(tmp_path / "a.bin", dtype=dtype)
    assert (corpus.train.tolist(), corpus.val.tolist()) == (list(range(90)), list(range(90, 100)))
    assert isinstance(corpus.train, np.memmap)


def test_a_val_bin_is_validation_as_a_whole(tmp_path):
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "val.bin")
    corpus = load(tmp_path / "val.bin")
    assert (len(corpus.train), len(corpus.val)) == (0, 100)
    assert len(corpus.windows("all", 9, vocab_size=256)) == 11


def test_a_folder(tmp_path):
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.arange(7, dtype=np.uint16).tofile(tmp_path / "val.bin")
    corpus = load(tmp_path)
    assert (len(corpus.train), len(corpus.val)) == (50, 7)
    (tmp_path / "train.bin").unlink()
    corpus = load(tmp_path)
    assert (len(corpus.train), len(corpus.val)) == (0, 7)
    with pytest.raises(BadData, match=r"\(training part\) has 0 tokens"):
        corpus.windows("train", 4, vocab_size=256)
    (tmp_path / "val.bin").unlink()
    with pytest.raises(BadData, match=r"without val\.bin"):
        load(tmp_path)


def test_npy(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100))
    assert load(tmp_path / "a.npy").val.tolist() == list(range(90, 100))


def test_rows_of_npy_are_sequences_and_padding_is_not_predicted(tmp_path):
    rows = np.array([[0, 5, 6, 0, -1], [0, 7, 0, -1, -1]] * 5)
    np.save(tmp_path / "a.npy", rows)
    corpus = load(tmp_path / "a.npy")
    assert (corpus.train.shape, corpus.val.shape) == ((9, 5), (1, 5))
    inputs, targets = cut(corpus.val, 4).take(np.array([0]))
    assert inputs.tolist() == [[0, 7, 0, 0]]
    assert targets.tolist() == [[7, 0, IGNORED, IGNORED]]
    with pytest.raises(BadData, match="rows of 5 ids, and a window has room for 4"):
        cut(corpus.val, 3)


@pytest.mark.parametrize("ids", [np.array([1.5, 2.5]), np.array(["a"]), np.zeros((2, 2, 2), dtype=int)])
def test_arrays_that_are_no_ids(tmp_path, ids):
    np.save(tmp_path / "a.npy", ids)
    with pytest.raises(BadData, match="no array of token ids"):
        load(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.zeros((5, 1), dtype=int), "at least two ids"),
        (np.zeros((5, 0), dtype=int), "at least two ids"),
        (np.array([[-1, -1, 3]]), "padding"),
    ],
)
def test_rows_that_are_none(tmp_path, rows, said):
    np.save(tmp_path / "a.npy", rows)
    with pytest.raises(BadData, match=said):
        load(tmp_path / "a.npy")


def test_rows_of_padding_alone_have_nothing_to_predict():
    with pytest.raises(BadData, match="nothing but padding"):
        cut(np.full((3, 5), -1), 4)


def test_a_large_vocabulary_is_not_read_as_uint16(tmp_path):
    np.arange(100, dtype=np.uint32).tofile(tmp_path / "a.bin")
    with pytest.raises(BadData, match="vocabulary of 70000") as caught:
        load(tmp_path / "a.bin", vocab_size=70_000)
    assert "--data-dtype uint32" in caught.value.hint
    assert load(tmp_path / "a.bin", vocab_size=70_000, dtype="uint32").val.tolist() == list(range(90, 100))


def test_npy_is_never_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadData, match="cannot be read"):
        load(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.bin", b"abc", "3 bytes"),
        ("a.bin", b"", "is empty"),
        ("a.txt", b"\xff\xfe\x00", r"no UTF-8 text \(byte 0\)"),
        ("a.npy", b"no", "cannot be read"),
    ],
)
def test_files_that_are_no_data(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadData, match=said):
        load(tmp_path / name)


def test_data_that_is_not_there(tmp_path):
    with pytest.raises(BadData, match=r"no data .*gone\.txt"):
        load(tmp_path / "gone.txt")


def test_ids_past_the_vocabulary(tmp_path):
    np.array([1, 2, 300], dtype=np.uint16).tofile(tmp_path / "a.bin")
    with pytest.raises(BadData, match="token id 300 at place 2, and the model knows 256"):
        load(tmp_path / "a.bin")
    np.save(tmp_path / "a.npy", np.array([1, 2, -1]))
    with pytest.raises(BadData, match="token id -1 at place 2"):
        load(tmp_path / "a.npy")


def test_every_id_is_looked_at_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("modernize.data._CHECKED_AT_ONCE", 7)
    ids = np.zeros(100, dtype=np.uint16)
    ids[45] = 999
    ids.tofile(tmp_path / "a.bin")
    with pytest.raises(BadData, match="token id 999 at place 45"):
        load(tmp_path / "a.bin")


def test_the_digest_of_a_corpus_is_that_of_its_ids(monkeypatch):
    def digest(train, val):
        return Corpus(name="", train=np.array(train, dtype=np.uint16), val=np.array(val)).digest()

    assert digest([1, 2, 3], [4]) == digest([1, 2, 3], [4])
    assert len({digest([1, 2, 3], [4]), digest([1, 2], [3, 4]), digest([1, 2, 4], [4]), digest([[1, 2, 3]], [4])}) == 4
    monkeypatch.setattr("modernize.data.DIGESTED", 1 << 17)  # of a large one, pieces from all over it
    large = np.zeros(1 << 19, dtype=np.uint16)
    before = digest(large, [1])
    large[0] = 1
    assert digest(large, [1]) != before


# ------------------------------------------------------------------------------------------ text


def test_line_ends_are_kept(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\n" * 5)
    corpus = load(tmp_path / "a.txt")
    assert bytes([*corpus.train, *corpus.val]) == b"one\r\ntwo\r\n" * 5


@pytest.fixture
def gpt2_like(tmp_path):
    """A byte-level BPE, trained here on a text with all kinds of spaces."""
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.ByteLevelBPETokenizer()
    inner.train_from_iterator([SPACED] * 3, vocab_size=400, min_frequency=1)
    inner.save(str(tmp_path / "tokenizer.json"))
    return find_tokenizer(str(tmp_path / "tokenizer.json"), vocabulary={}, beside=tmp_path, vocab_size=1000)


SPACED = "Ein Haus\n\n\n  steht da,\nein  Maß voll\r\n\tWein.\nÜber\n \nBerge 日本\nend " * 40


@pytest.mark.parametrize("line", ["one line\r\n", "a paragraph\n\n", "word\n", "  indented\n\tmore\nend\n"])
def test_texts_of_all_kinds_are_cut(tmp_path, monkeypatch, gpt2_like, line):
    monkeypatch.setattr("modernize.text.PIECE", 50)
    (tmp_path / "a.txt").write_bytes(line.encode() * 100)
    pieces = list(_pieces(tmp_path / "a.txt"))
    assert max(map(len, pieces)) < 150
    assert [i for piece in pieces for i in gpt2_like.encode(piece)] == gpt2_like.encode(line * 100).tolist()
    monkeypatch.setattr("modernize.text.LONGEST_LINE", 60)
    (tmp_path / "a.txt").write_bytes(b"x" * 1000)
    assert max(map(len, _pieces(tmp_path / "a.txt"))) <= 100


@pytest.mark.parametrize("piece", [1, 7, 64, 1000])
def test_a_large_text_gives_the_ids_of_the_whole_and_keeps_them(tmp_path, monkeypatch, gpt2_like, piece):
    monkeypatch.setattr("modernize.text.LARGE", 100)
    monkeypatch.setattr("modernize.text.PIECE", piece)
    monkeypatch.setattr("modernize.text.MB", 1)
    path = tmp_path / "a.txt"
    path.write_bytes(SPACED.encode())
    characters = VocabularyTokenizer({c: i for i, c in enumerate(sorted(set(SPACED)))}, "characters")
    told = []
    for tokenizer in (gpt2_like, characters, BytesTokenizer()):
        found = encode_file(path, tokenizer, progress=lambda *so_far: told.append(so_far))
        size = path.stat().st_size
        assert told[-1] == (size, size)
        assert isinstance(found, np.memmap)
        assert found.dtype == np.uint16
        assert found.tolist() == tokenizer.encode(SPACED).tolist()
    caches = sorted(p.name for p in tmp_path.glob("a.txt.*.ids"))
    assert len(caches) == 3
    monkeypatch.setattr(BytesTokenizer, "encode", lambda *_: pytest.fail("encoded again"))
    assert bytes(encode_file(path, BytesTokenizer()).tolist()) == SPACED.encode()
    path.write_bytes(SPACED.encode() + b".")
    with pytest.raises(pytest.fail.Exception):
        encode_file(path, BytesTokenizer())
    assert sorted(p.name for p in tmp_path.glob("*a.txt.*")) == caches


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_bytes_that_are_no_text_are_named_by_their_place(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("modernize.text.PIECE", piece)
    (tmp_path / "a.txt").write_bytes("aß".encode() + b"b\xffc")
    with pytest.raises(BadData, match=r"byte 4\)"):
        load(tmp_path / "a.txt")


# ------------------------------------------------------------------------------------------ windows


def test_windows_do_not_overlap_and_predict_the_next_id():
    found = cut(np.arange(14), 4)
    assert len(found) == 3
    inputs, targets = found.take(np.array([0, 2]))
    assert inputs.tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert targets.tolist() == [[1, 2, 3, 4], [9, 10, 11, 12]]
    assert [len(x) for x, _ in found.batches(2)] == [2, 1]
    assert [len(x) for x, _ in found.batches(2, limit=1)] == [1]


def test_drawn_windows_reach_from_the_first_to_the_last_id():
    found = cut(np.arange(6), 4)
    starts = {int(x[0, 0]) for x, _ in (found.draw(np.random.default_rng(s), 1) for s in range(50))}
    assert starts == {0, 1}


@pytest.mark.parametrize("length", [0, 1, 4])
def test_less_than_a_window_is_refused_with_both_numbers(length):
    with pytest.raises(BadData, match=f"has {length} tokens, and one window of context 4 needs 5"):
        cut(np.arange(length), 4)


# ------------------------------------------------------------------------------------------ tokenizers


def find(option=None, *, vocabulary=None, beside=Path("/nowhere/m.pt"), vocab_size=61):
    return find_tokenizer(option, vocabulary=vocabulary or {}, beside=beside, vocab_size=vocab_size)


def test_a_vocabulary_of_characters():
    made = VocabularyTokenizer({"a": 0, "b": 1, "\n": 2}, "test")
    assert made.encode("ab\nb").tolist() == [0, 1, 2, 1]
    assert made.decode([0, 1, 2]) == "ab\n"
    assert made.decode([0, 9]) == "a\ufffd"
    with pytest.raises(BadData, match=r"'é' \(U\+00E9, at position 2\)"):
        made.encode("abé")


def test_a_vocabulary_of_words_takes_the_longest():
    made = VocabularyTokenizer({" ": 0, "is": 1, "island": 2, "a": 3}, "test")
    assert made.encode("island is a").tolist() == [2, 0, 1, 0, 3]


def test_bytes_round_trip():
    assert BytesTokenizer().decode(BytesTokenizer().encode("naïve 日本\n").tolist()) == "naïve 日本\n"


def bpe_folder(path):
    path.mkdir()
    (path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "Ġ": 3}))
    (path / "merges.txt").write_text("#version: 0.2\na b\n")
    return path


def test_the_order_in_which_tokenizers_are_found(tmp_path):
    beside = tmp_path / "m.pt"
    assert find(vocab_size=256).name == "bytes"
    bpe_folder(tmp_path / "bpe")
    (tmp_path / "vocab.json").write_bytes((tmp_path / "bpe" / "vocab.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((tmp_path / "bpe" / "merges.txt").read_bytes())
    assert find(beside=beside, vocab_size=256).size == 4
    with (tmp_path / "meta.pkl").open("wb") as f:
        pickle.dump({"stoi": {"x": 0, "y": 1}, "itos": {0: "x", 1: "y"}}, f)
    assert find(beside=beside).encode("yx").tolist() == [1, 0]
    assert find(vocabulary={"z": 0}, beside=beside).encode("z").tolist() == [0]
    assert find("bytes", vocabulary={"z": 0}, beside=beside, vocab_size=256).name == "bytes"
    with pytest.raises(BadData, match="no tokenizer"):
        find(vocab_size=61)


def test_a_tokenizer_by_option(tmp_path):
    folder = bpe_folder(tmp_path / "bpe")
    for option in (folder, folder / "vocab.json"):
        made = find(str(option))
        assert made.encode("ab b").tolist() == [2, 3, 1]
        assert made.decode([2, 3, 1]) == "ab b"
    import tokenizers

    tokenizers.Tokenizer.from_file  # noqa: B018
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    inner.save(str(tmp_path / "tokenizer.json"))
    assert find(str(tmp_path / "tokenizer.json")).encode("b").tolist() == [1]


@pytest.mark.parametrize("option", ["gone.json", "."])
def test_tokenizers_that_are_not_there(tmp_path, option):
    with pytest.raises(BadData, match="--tokenizer"):
        find(str(tmp_path / option))


def test_a_tokenizer_with_too_many_tokens():
    with pytest.raises(BadData, match="256 tokens, and the model knows 61"):
        find("bytes")


class Evil:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return open, (str(self.canary), "w")


@pytest.mark.parametrize("content", ["evil", "text", "empty"])
def test_a_meta_pkl_is_read_as_plain_values_only(tmp_path, content):
    meta = tmp_path / "meta.pkl"
    meta.write_bytes(
        {"evil": pickle.dumps({"stoi": Evil(tmp_path / "canary")}), "text": b"hello", "empty": pickle.dumps({})}[
            content
        ]
    )
    with pytest.raises(BadData, match=r"meta\.pkl"):
        find(beside=tmp_path / "m.pt")
    assert not (tmp_path / "canary").exists()


def test_an_empty_file_of_ids_is_called_empty(run, new, tmp_path):
    (path := tmp_path / "none.bin").write_bytes(b"")
    assert f"error: {path} is empty" in run("eval", new, "--data", path).err


@pytest.mark.parametrize(("text", "hint"), [("a\r\nb", "Windows line ends"), ("\ufeffab", "byte order mark")])
def test_a_character_that_comes_from_saving_is_explained(text, hint):
    tokenizer = VocabularyTokenizer(stoi={"a": 0, "b": 1, "\n": 2}, name="the checkpoint")
    with pytest.raises(BadData) as met:
        tokenizer.encode(text)
    assert hint in met.value.hint


def test_ids_of_uint32_that_are_read_as_uint16_are_doubted(run, tmp_path, checkpoints):
    """By the loss, since words with a blank behind each have a zero in every second place too."""
    folder = checkpoints / "nanogpt-shakespeare-bias"
    path = tmp_path / "wide.bin"
    np.fromfile(folder / "val.bin", dtype=np.uint16)[:60_000].astype(np.uint32).tofile(path)
    options = ("--activation", "gelu", "--data", path)
    found = run("eval", folder / "ckpt.pt", *options)
    assert found.code == 0
    assert "is worse than chance, 4.1744: was DATA made by the tokenizer of this model" in found.err
    assert "chance" not in run("eval", folder / "ckpt.pt", *options, "--data-dtype", "uint32").err


@pytest.mark.parametrize(("loss", "told"), [(4.2, True), (4.1, False), (math.nan, False), (math.inf, True)])
def test_a_loss_worse_than_chance_is_doubted(loss, told):
    assert bool(doubts_of(loss, 65)) is told


def test_the_warning_comes_with_a_fine_tune_too(run, new, nano, data):
    found = run("finetune", new, "--data", data, "--teacher", nano, "--steps", 1, "--device", "cpu")
    assert found.err.count("is worse than chance") == 1  # random weights, on random ids
