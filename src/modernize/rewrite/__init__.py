"""Rewrite: a canonical State of the old model becomes the State of a modern one.

    plan.py    what is chosen (init, bias, tie, base), the moves that follow, and each tensor's fate; needs no torch
    fold.py    the exact moves: what LayerNorm and positions do, moved into the neighbouring weights
    reset.py   the plain moves: what is dropped or set to one
    tie.py     whether a tied head stays tied
    apply.py   a plan's moves, in float64, one after the other
    pieces.py  what the exact and the plain moves may be done for by itself: a matrix each, in blocks; needs no torch
    stream.py  the same moves from the file, piece by piece

Every move takes a State and gives a new one; its input stays as it was.
"""
