"""The options of a collection, as `create` and `collMod` take them."""

from __future__ import annotations

from replset.bson import RawDocument, encode
from replset.errors import BadValueError, InvalidOptionsError
from replset.features.collections.view_options import view_options
from replset.features.crud.validators import Validator
from replset.features.indexes.index_specs import parse_index, with_collation
from replset.operations import fields
from replset.replication.write_ops import IMAGES, OPTION_ORDER, changed_options

CREATE_FIELDS = frozenset({*OPTION_ORDER, "idIndex", "collation", "autoIndexId"})
_LARGEST_SIZE, _MOST_DOCUMENTS = 1 << 50, (1 << 31) - 1
_SIZE_STEP, _LEAST_SIZE = 256, 4096
VALIDATION = {"validationLevel": ("off", "strict", "moderate"), "validationAction": ("error", "warn")}


def options_of(body: RawDocument, place: str) -> RawDocument:
    """The options that a create command, or the `o` of such an entry, asks for; those that mean nothing are left out.

    Compiles the validator, and encodes it: in a thread when the body is large.
    """
    fold = fields.collation(body, place)
    collation: dict[str, object] = {} if fold is None else {"collation": fold.spec}
    if not fields.boolean(body, "autoIndexId", place, True):
        raise InvalidOptionsError("autoIndexId: false is not supported: every collection has the index on _id")
    id_index = fields.document(body, "idIndex", place)
    if id_index is not None and with_collation(parse_index(id_index, f"{place}.idIndex", False), fold) is not None:
        raise BadValueError("The field 'key' for an _id index must be {_id: 1}")
    view = view_options(body, place)
    if view is not None:
        return RawDocument(encode(changed_options(view, collation)))
    capped = _capped_options(body, place) if fields.boolean(body, "capped", place) else {}
    more = validation_options(body, place) | images_option(body, place) | collation
    return RawDocument(encode(changed_options(capped, more)))


def _capped_options(body: RawDocument, place: str) -> dict[str, object]:
    """Read the options of a capped collection. As in MongoDB, the size is raised to a multiple of 256, and to 4096."""
    if fields.is_absent(body, "size"):
        raise InvalidOptionsError("the 'size' field is required when 'capped' is true")
    options: dict[str, object] = {"capped": True, "size": capped_size(body, "size", place)}
    most = fields.whole(body, "max", place, most=_MOST_DOCUMENTS)
    return options | ({"max": most} if most > 0 else {})


def capped_size(body: RawDocument, name: str, place: str) -> int:
    size = fields.whole(body, name, place, least=1, most=_LARGEST_SIZE)
    return max(_LEAST_SIZE, -(-size // _SIZE_STEP) * _SIZE_STEP)


def capped_max(body: RawDocument, name: str, place: str) -> int:
    return max(0, fields.whole(body, name, place, most=_MOST_DOCUMENTS))


def validation_options(body: RawDocument, place: str) -> dict[str, object]:
    """validator, validationLevel and validationAction, as far as they are given; an empty validator too."""
    options: dict[str, object] = {}
    validator = fields.document(body, "validator", place)
    if validator is not None:
        Validator(body)  # refuses what cannot be compiled
        options["validator"] = validator.decode()
    for name, values in VALIDATION.items():
        if not fields.is_absent(body, name):
            value = fields.text(body, name, place)
            if value not in values:
                raise BadValueError(f"Enumeration value '{value:.80}' for field '{place}.{name}' is not a valid value.")
            options[name] = value
    return options


def images_option(body: RawDocument, place: str) -> dict[str, object]:
    """changeStreamPreAndPostImages if it is given. It is kept and shown; the images are there without it."""
    images = fields.document(body, IMAGES, place)
    if images is None:
        return {}
    fields.check_fields(images, frozenset({"enabled"}), f"{place}.{IMAGES}")
    return {IMAGES: {"enabled": fields.boolean(images, "enabled", f"{place}.{IMAGES}")}}
