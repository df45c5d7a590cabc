"""How much a file may ask for. Everything that reads a file looks here first, and refuses what is above.

Each stands above what programs write (GPT-2 XL with its optimizer: 1,200 tensors, 40,000 instructions; a BPE vocabulary
of 50,000 tokens there and back with its merges: 700,000) and below what a machine minds.
"""

# pickles
OPCODES = 1_000_000  # instructions
DEPTH = 100  # containers in one another
PICKLE = 1 << 30  # bytes that one pickle in a zip may have
INTEGER = 1024  # bytes of a whole number
LINE = 4096  # bytes of an argument that ends with its line
NUMBERS = 20_000  # larger than any token that are keys: hashed without a secret, so that a file could make them collide
SETS = 100_000
COPIED = 1 << 20  # values and bytes that calls copy, beside those that the pickle holds

# archives
MEMBERS = 50_000  # in a zip
DIRECTORY = 1 << 25  # bytes that name them

# tensors
TENSORS = 50_000  # in a file
NAME = 512  # characters
EXPANDED = 1 << 26  # bytes of a tensor whose numbers stand for several elements each, such as a mask
DIMENSIONS = 16  # axes
SIZE = 1 << 48  # of one axis

# what stands beside the weights
TOKENS = 1 << 20  # of a vocabulary
GROUPS = 100  # of settings
SETTINGS = 10_000  # in a group
SAID = 1 << 22  # characters of a text of JSON that is a value

# texts of JSON
HEADER = 1 << 24  # bytes of a safetensors header
JSON = 1 << 24  # bytes of a configuration or an index
