"""The manifest: all that is committed, as an object and as the bytes of `manifest.json`."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from aweigh.io.errors import DataError, StorageError
from aweigh.io.model import Batch, Ids, Link, View, check_name

__all__ = ["MANIFEST", "SCHEMA", "Batch", "Manifest", "View", "check_name", "decode", "encode"]

SCHEMA = 1
NEEDS = "aweigh 0.1"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """All that is committed: the views in order, the batches in order."""

    views: tuple[View, ...] = ()
    batches: tuple[Batch, ...] = ()


def encode(manifest: Manifest) -> bytes:
    """The bytes of `manifest.json`, with a digest of themselves."""
    body = {
        "schema": SCHEMA,
        "needs": NEEDS,
        "views": {view.name: {"features": view.features, "dtype": view.dtype} for view in manifest.views},
        "batches": [_batch_entry(batch) for batch in manifest.batches],
    }
    return json.dumps({"sha256": _digest(body), **body}, separators=(",", ":"), allow_nan=False).encode()


def decode(data: bytes, where: str) -> Manifest:
    """The manifest of these bytes, read from `where`.

    StorageError where they are torn or were edited; DataError where a newer version of aweigh wrote them.
    """
    try:
        body = json.loads(data)
        schema = body["schema"]
        if isinstance(schema, int) and schema > SCHEMA:
            raise DataError(
                f"{where} has schema {schema}, and this version of aweigh reads up to {SCHEMA}",
                f"Install a newer aweigh (the manifest says: {body.get('needs', 'newer')} or later).",
            )
        if body.pop("sha256") != _digest(body):
            raise ValueError("its digest does not match")
        views = tuple(View(name, entry["features"], entry["dtype"]) for name, entry in body["views"].items())
        return Manifest(views, _batches(body["batches"], views))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{where} is torn or was edited by hand ({type(error).__name__}: {error}); it is the only "
            "list of what is committed",
            "Restore it from a backup; the batches' data is not touched.",
        ) from error


def _batch_entry(batch: Batch) -> dict[str, Any]:
    views = {
        view.name: {
            "missing": batch.missing[view.name],
            "chunks": batch.blocks,
            "absent": [list(pair) for pair in batch.absent[view.name]],
            **({"link": batch.links[view.name]._asdict()} if view.name in batch.links else {}),
        }
        for view in batch.views
    }
    return {
        "name": batch.name,
        "rows": batch.rows,
        "block_rows": batch.block_rows,
        "ids": batch.ids._asdict(),
        "labels": batch.labels,
        "digest": batch.digest,
        "views": views,
    }


def _batches(entries: list[dict[str, Any]], views: tuple[View, ...]) -> tuple[Batch, ...]:
    batches: list[Batch] = []
    start = 0
    for entry in entries:
        per_view = entry["views"]
        absent = {name: tuple((first, last) for first, last in value["absent"]) for name, value in per_view.items()}
        links = {name: Link(**value["link"]) for name, value in per_view.items() if "link" in value}
        missing = {name: value["missing"] for name, value in per_view.items()}
        batches.append(
            Batch(
                entry["name"],
                entry["rows"],
                start,
                entry["block_rows"],
                views,
                Ids(**entry["ids"]),
                entry["labels"],
                entry["digest"],
                missing,
                absent,
                links,
            )
        )
        start += entry["rows"]
    return tuple(batches)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, separators=(",", ":")).encode()).hexdigest()
