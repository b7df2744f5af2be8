"""Filter an output again with other thresholds, from the scores stored in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tamis.errors import RecipeError
from tamis.ledger import Ledger
from tamis.recipes.load import Recipe, recorded
from tamis.report import Report, load_manifest
from tamis.store import INTERNAL, Store

_SCORES = f"{INTERNAL}/scores"


def rethreshold(
    output: str | Path, overrides: Sequence[str], *, to: str | Path | None = None, **options: Any
) -> Report:
    """Run the recipe recorded in `output` with other thresholds, and write to the same folder, or to `to`.

    No filter measures rows again. Rows that are kept again are copied from the files in `output`, and only rows that were
    dropped and are kept now are read and processed. Rejected rows are kept if they were before. Relative paths of the input
    are resolved against the directory of the first run. Takes the options of `Pipeline.run`.
    """
    source = Store(str(output))
    if not source.names(_SCORES):
        raise RecipeError(f"no scores are stored in {output}", hint="run the recipe with --scores first")
    if not overrides:
        raise RecipeError("no threshold is given", hint="for example: --set gopher_quality.min_words=40")
    manifest = load_manifest(output)
    recipe = recorded(output).rethresholded(overrides)
    target = _absolute(to if to is not None else output)
    if to is not None:
        recipe = _with_blocksize(recipe, manifest["partitioning"]["blocksize"])
    recipe = recipe.with_paths(output=target)
    with _in_directory(manifest["directory"]):
        pipeline = recipe.build()
        if to is not None:
            pipeline.check()  # raises before anything is copied
            _copy_scores(source, Store(target))
            _link_shards(source, Store(target))
        return pipeline.run(**{"rejects": manifest["rejects"], **options}, scores=True)


def _absolute(path: str | Path) -> str:
    return str(path) if "://" in str(path) else os.path.abspath(path)  # noqa: PTH100 (keeps links)


def _with_blocksize(recipe: Recipe, blocksize: int) -> Recipe:
    """With the partitions of the first run, whose identity is part of the names of scores."""
    reader = recipe.steps[0]
    if {"blocksize", "files_per_partition"} & set(reader.parameters):
        return recipe
    reader = replace(reader, parameters={**reader.parameters, "blocksize": blocksize})
    return replace(recipe, steps=(reader, *recipe.steps[1:]))


def _copy_scores(source: Store, target: Store) -> None:
    target.make()
    known = set(target.names(_SCORES))
    for name in source.names(_SCORES):
        if name not in known:
            file = target.scratch() / name
            source.fetch(f"{_SCORES}/{name}", file)
            target.publish(file, f"{_SCORES}/{name}")


def _link_shards(source: Store, target: Store) -> None:
    """Let a new output folder start with the files of an output, from which it copies rows.

    Files are never changed in place, so links are safe. Between object stores nothing is copied: rows are processed again.
    """
    if not (source.local and target.local):
        return
    before = Ledger(source)
    before.load()
    with Ledger(target) as ledger:
        if ledger.plan is not None or set(target.names()) - ledger.owned_files - {INTERNAL}:
            return  # a run has begun there, or the folder holds other data, which the run refuses
        reusable = [commit for commit in before.commits.values() if "reuse" in commit.extra]
        ledger.append(commit.record() for commit in reusable)
        ledger.set_aside(reusable)
        for commit in reusable:
            for shard in commit.shards:  # the row numbers are the last, and without them nothing is reused
                target.link(source, shard.name)


def _in_directory(folder: str) -> contextlib.AbstractContextManager[None]:
    if not Path(folder).is_dir():
        raise RecipeError(
            f"the directory of the first run, {folder}, does not exist",
            hint="the input is read again, relative to it; run the recipe with --scores again",
        )
    return contextlib.chdir(folder)
