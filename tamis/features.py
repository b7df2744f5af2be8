"""The features of Hugging Face datasets: the key `huggingface` in the metadata of a schema.

It says that a column is an image, a sound, a class label. Files that a run writes keep what its input said about the
columns they have. All other metadata (of pandas, for example) describes the input file and not its rows, and is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

KEY = b"huggingface"
_MEDIA = ("Image", "Audio", "Video")


def media_feature(kind: str) -> dict[str, str]:
    """The feature of a column of media: image, audio or video.

    >>> media_feature("image")
    {'_type': 'Image'}
    """
    return {"_type": kind.capitalize()}


def features_of(schema: pa.Schema) -> dict[str, Any]:
    """The features of a schema by column; {} if it has none, or they are damaged."""
    try:
        found = json.loads((schema.metadata or {}).get(KEY, b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return {name: kind for name, kind in found.items() if name in schema.names} if isinstance(found, dict) else {}


def with_features(schema: pa.Schema, features: Mapping[str, Any]) -> pa.Schema:
    """The schema with the features of its columns and no other metadata; the same features always give the same text."""
    known = {name: features[name] for name in schema.names if name in features}
    if not known:
        return schema.remove_metadata()
    text = json.dumps({"info": {"features": known}}, ensure_ascii=False, sort_keys=True)
    return schema.with_metadata({KEY: text.encode()})


def merged_features(schemas: Iterable[pa.Schema]) -> dict[str, Any]:
    """The features of all schemas; for each column those of the first that has any."""
    found: dict[str, Any] = {}
    for schema in schemas:
        found = features_of(schema) | found
    return found


def after_writing(features: Mapping[str, Any], written: Iterable[str]) -> dict[str, Any]:
    """The features that hold after a step wrote some columns: an image remains one, a class label may not."""
    changed = set(written)
    return {name: kind for name, kind in features.items() if name not in changed or _is_media(kind)}


def _is_media(feature: Any) -> bool:
    return isinstance(feature, dict) and feature.get("_type") in _MEDIA
