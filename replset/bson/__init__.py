"""Reads and writes BSON: decoding, encoding, raw documents, keys and limits. Imports only errors."""

from replset.bson.decimal128 import Decimal128
from replset.bson.decoding import decode, validate
from replset.bson.encoding import Document, append_fields, array_of, encode, with_fields
from replset.bson.errors import ExtendedJSONError, InvalidBSONError, InvalidValueError
from replset.bson.keystring import encode_key, is_document_of
from replset.bson.layout import Form, Layout, document_of
from replset.bson.limits import (
    MAX_BSON_SIZE,
    MAX_DEPTH,
    MAX_ENTRY_SIZE,
    MAX_INTERNAL_SIZE,
    MAX_MESSAGE_SIZE,
    MAX_WRITE_BATCH,
)
from replset.bson.raw import RawDocument, RawDocuments, documents_of, walk
from replset.bson.values import (
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    DBPointer,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    ObjectIds,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
)

__all__ = [
    "MAX_BSON_SIZE",
    "MAX_DEPTH",
    "MAX_ENTRY_SIZE",
    "MAX_INTERNAL_SIZE",
    "MAX_MESSAGE_SIZE",
    "MAX_WRITE_BATCH",
    "Binary",
    "Code",
    "CodeWithScope",
    "DBPointer",
    "DateTime",
    "Decimal128",
    "Document",
    "ExtendedJSONError",
    "Form",
    "Int64",
    "InvalidBSONError",
    "InvalidValueError",
    "Layout",
    "MaxKey",
    "MinKey",
    "ObjectId",
    "ObjectIds",
    "RawDocument",
    "RawDocuments",
    "Regex",
    "Symbol",
    "Timestamp",
    "Undefined",
    "append_fields",
    "array_of",
    "decode",
    "document_of",
    "documents_of",
    "encode",
    "encode_key",
    "is_document_of",
    "validate",
    "walk",
    "with_fields",
]
