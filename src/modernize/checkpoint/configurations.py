"""Where objects of configuration libraries keep their values: the field that holds them, in the place of the object.

Objects whose values are their own fields (dataclasses, namespaces, dictionaries of another name) need nothing of this.
"""

from collections.abc import Mapping

from modernize.checkpoint.records import Record

# field -> whose it is
_HELD_IN = {
    "_content": "omegaconf's DictConfig, of nodes",
    "_fields": "ml_collections' ConfigDict",
    "__dict__": "pydantic's models",
}
_NODE = "_val"  # of omegaconf's values


def unfolded(value: object) -> object:
    """The values of a configuration object; anything else as it is."""
    if not isinstance(value, Record):
        return value
    if _NODE in value.fields:
        return value.fields[_NODE]
    for field in _HELD_IN:
        inside = value.fields.get(field)
        if isinstance(inside, Mapping):
            return inside
    return value
