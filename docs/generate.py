"""Write docs/checkpoints.md from the tables that the program itself uses.

python docs/generate.py
"""

from pathlib import Path

from modernize.checkpoint.envelope import MARKERS, SETTINGS, WRAPPERS
from modernize.dialects import DIALECTS, Dialect
from modernize.dialects.demands import DEMANDS
from modernize.dialects.setting_names import ACTIVATION_NAMES, ALIASES

HEAD = """\
# Old checkpoints that can be read

Written by `python docs/generate.py` from the tables in [`src/modernize/dialects/`](../src/modernize/dialects/); a test
says so. `modernize inspect FILE` tells what a file is and what would become of it, and `modernize dialects` lists these
tables.

## Files

A `.pt`, `.pth`, `.bin`, `.ckpt` or `.pkl` file that torch wrote, as a zip or in its older format; a `.safetensors` file;
or a Hugging Face folder with `config.json` and its weights, whole or in shards with an index. What a file is, its content
says, not its name. Of a folder with several, the first of `model.safetensors`, its index, `pytorch_model.bin`, its index is
read; of one of these files that is given itself, the `config.json` beside it is read too. No code of a file is ever run: one that
holds more than tensors and plain values is refused, with the class that stood in the way and how to save again.

In a torch file the weights are looked for under {model}, also one in another, or as the file itself; with
`--weights ema` under {ema}, or under names that say so. What stands in front of all names (`model.`, `net.`, `gpt.`, …) is
taken off, {markers} wherever
they stand. Weights under another word are taken, with a warning, where the file has no others. Metrics and losses beside
the model are listed as ignored, and so is a second set of weights, averaged, under a prefix of its own. A mask is ignored
where it is a causal one. Anything else that no table knows is refused by name.

## Facts

What names and shapes can't tell is read from {settings} in the file, under any of these names, most telling first:

| fact | names |
| --- | --- |
{facts}

Capitals don't matter, and a group may lie in another, be JSON, or be the metadata of a safetensors file. Activations:
{activations}. What nothing says is assumed where the table below says what its programs do, with a warning where they
differ, and is asked for elsewhere: `--n-head`, `--activation`, `--attn-scale`, `--norm`, `--norm-eps`, `--qkv-order`,
`--dialect`, `--weights`. `modernize inspect FILE --data DATA` tries what is open, and names what fits; two GELUs
predict so nearly alike that DATA doesn't settle which it was.

Settings that change what is computed are refused where they say anything else than this; a dialect's own come first:

| setting | only |
| --- | --- |
{demands}

## Dialects

| dialect | what |
| --- | --- |
{dialects}

A file is of a dialect when every one of its tensors is claimed by a row and every row that isn't optional claims one. In
names, `{{i}}` is the layer, `{{j}}` the head, `{{p}}` `weight` or `bias`, `[…]` may be absent, and `{{a|b}}` is one of these;
what stands before the layer is spelt alike in the whole file.
Where several dialects fit, settings and options decide; those called course-* stand back where another fits.
"""

TAIL = """
## What can't be converted

Post-norm models (the norm stands in the stream, so it can't be moved into a matrix); models without positions, with
sinusoidal ones, or with RoPE or RMSNorm already; attention that is not plainly causal, or grouped, or wider than the
embedding; gated MLPs; models with parts that no row
knows; LSTMs, Mamba, bigram models, classifiers and encoders; adapters (LoRA) without their model; quantized weights;
TensorFlow, Keras, Flax, Orbax, GGUF, llm.c, ONNX, TorchScript, torch.export, numpy, ZeRO and distributed checkpoints; archives
that are still packed. Each is told what it is and what to do.

## To add a dialect

Where a model differs from the course-* ones only by another name for a part, no dialect is wanted, but a word in
`src/modernize/dialects/spellings.py`. Otherwise:

1. A file `src/modernize/dialects/NAME.py` of at most 60 lines: rows, and what its programs are known to do. A row is
   `keep`, `transpose`, `split3`, `transpose_split3`, `stack_heads`, `stack_heads_alone`, `squeeze`, `drop`, or a `Rule` with
   an op of `ops.py`; its targets are the canonical names (`h.{i}.attn.q.{p}`, …). An `Assumption` says what its programs do
   where the file doesn't, with a `doubt` where copies differ; a fact without one is asked for. `PRE` is that of norms which
   surely stand before.
2. One entry in `src/modernize/dialects/__init__.py`: the import, and its place in `DIALECTS`.
3. `python docs/generate.py`.

Three fields tell dialects apart that fit the same names. `loose` is for a table of many spellings: it stands back where
another fits, and warns of what such names can't tell. `marks` are groups of settings that only its programs write, as
nanoGPT writes `model_args`. `tied` lists whether its programs share the head with the embedding, where they always or
never do.

The tests make a tiny checkpoint from every table, read it back, take keys away and put some in, and hold rows and files to
their form. A layout that stores tensors in another way wants a forward pass in `tests/test_layouts.py` as well.
`torch_encoder.py` is the last one that was added so.
"""


def section(dialect: Dialect) -> str:
    """One dialect: what is assumed, and its rows."""
    lines = [f"### {dialect.name}\n", f"{dialect.title}.\n"]
    if dialect.model_types:
        must = "".join(f", {name} {value}" for name, value in dialect.must_be)
        lines.append(f"With a `config.json`: model_type {', '.join(dialect.model_types)}{must}.\n")
    if dialect.doubts:
        lines.append(f"Warned of: {'; '.join(dialect.doubts)}.\n")
    if dialect.assumptions:
        said = [f"{a.field} {a.value}" + (f" ({a.doubt})" if a.doubt else "") for a in dialect.assumptions]
        lines.append(f"Assumed where nothing says it: {'; '.join(said)}.\n")
    lines += ["| name in the file | becomes | how |", "| --- | --- | --- |"]
    for rule in dialect.rules:
        name = rule.source.replace("|", "\\|")
        becomes = ", ".join(f"`{target}`" for target in rule.targets) or "nothing"
        how = rule.op.name + (", may be absent" if rule.optional and rule.targets else "")
        lines.append(f"| `{name}` | {becomes} | {how} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""

    def words(names: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    head = HEAD.format(
        model=words(WRAPPERS["model"]),
        ema=words(WRAPPERS["ema"]),
        markers=words(tuple(f"{marker}." for marker in sorted(MARKERS))),
        settings=words(SETTINGS),
        dialects="\n".join(f"| [`{d.name}`](#{d.name}) | {d.title} |" for d in DIALECTS),
        facts="\n".join(f"| {fact} | {words(names)} |" for fact, names in ALIASES.items()),
        demands="\n".join(f"| {words(d.names)} | {d.only.replace('{', '').replace('}', '')} |" for d in DEMANDS),
        activations=", ".join(f"`{name}` is {activation}" for name, activation in ACTIVATION_NAMES.items()),
    )
    return "\n".join([head, *map(section, DIALECTS)]) + TAIL


if __name__ == "__main__":
    (Path(__file__).parent / "checkpoints.md").write_text(page(), encoding="utf-8")
