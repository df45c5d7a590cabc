"""The words that options take. Nothing is imported here, so that the command line can name them without torch."""

from typing import Literal

Activation = Literal["gelu", "gelu_tanh", "relu"]  # of old models
AttnScale = Literal["head", "embd"]  # scores divided by √(head size) or by √width
Bias = Literal["drop", "keep"]
DataDType = Literal["uint16", "uint32"]
DeviceName = Literal["auto", "cuda", "mps", "cpu"]
DTypeName = Literal["keep", "float32", "bfloat16", "float16"]
Effort = Literal["quick", "full"]
Fate = Literal["kept", "renamed", "split", "folded", "absorbed", "dropped", "reinitialized", "ignored"]
Init = Literal["retrofit", "fold", "reset"]
ModernActivation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Norm = Literal["pre", "post"]  # norms before attention and MLP, or behind them
OptimizerName = Literal["auto", "muon", "adamw"]
PrecisionName = Literal["auto", "bfloat16", "float16", "float32"]
Runtime = Literal["arcee", "llama"]  # whose model class an export is made for
Split = Literal["val", "train", "all"]
Tie = Literal["auto", "tie", "untie"]
Weights = Literal["model", "ema"]
