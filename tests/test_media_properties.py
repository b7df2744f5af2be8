"""Random tables with binaries pass unchanged through files, steps, spilled rows, deduplication and memory."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis import ArrowReader, JsonlReader, JsonlWriter, ParquetReader, ParquetWriter, Pipeline, Rows
from tamis.batch import Batch, Origin
from tamis.dedup.exact import ExactDedup
from tamis.exchange import FolderExchange
from tamis.media import read_bytes
from tamis.memory.spill import SpilledRows, SpillWriter, write_rows
from tamis.operators import Partition, Reading

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
PROPERTY = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], derandomize=True)

contents = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.integers(100_000, 300_000)),
)
# A path with a scheme or a root refers to the same file from anywhere, so that it is never changed.
paths = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map("/x/{}".format))
media = st.one_of(st.none(), st.fixed_dictionaries({"bytes": contents, "path": paths}))


@st.composite
def tables(draw):
    rows = draw(
        st.lists(st.tuples(st.integers(0, 5), media, st.lists(media, max_size=2), contents), min_size=1, max_size=8)
    )
    ids, images, pages, raw = zip(*rows, strict=True)
    kind = draw(st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]))
    fields = [pa.array(ids), pa.array(images, MEDIA), pa.array(pages, pa.list_(MEDIA)), pa.array(raw, kind)]
    return pa.table(fields, names=["id", "image", "pages", "raw"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("properties")
    return lambda: Path(tempfile.mkdtemp(dir=root))


@PROPERTY
@given(tables(), st.integers(1, 4))
def test_parquet_to_parquet_and_memory(folders, table, group):
    folder = folders()
    pq.write_table(table, folder / "in.parquet", row_group_size=group)
    Pipeline(ParquetReader(folder / "in.parquet", blocksize="1B"), ParquetWriter(folder / "out")).run(executor="inline")
    assert pq.read_table(folder / "out").to_pylist() == table.to_pylist()
    assert Pipeline(Rows(table, rows_per_partition=group)).collect(executor="inline").to_pylist() == table.to_pylist()


@PROPERTY
@given(tables())
def test_arrow_to_parquet_with_duplicates_dropped(folders, table):
    folder = folders()
    with pa.ipc.new_file(folder / "in.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    steps = [lambda row: True, ExactDedup(column="id")]  # the function makes the rows pass through the disk
    Pipeline(ArrowReader(folder / "in.arrow"), *steps, ParquetWriter(folder / "out")).run(
        executor="inline", rejects=True
    )
    first = {}
    for row in table.to_pylist():
        first.setdefault(row["id"], row)
    assert pq.read_table(folder / "out").to_pylist() == list(first.values())
    rejects = [row for file in (folder / "out/.tamis/rejects").glob("*") for row in pq.read_table(file).to_pylist()]
    dropped = [{name: row[name] for name in table.column_names} for row in rejects]
    assert len(dropped) == table.num_rows - len(first)
    assert all(row in table.to_pylist() for row in dropped)


@PROPERTY
@given(tables(), st.integers(1, 500_000))
def test_rows_between_stages(folders, table, batch_bytes):
    folder = folders()
    batch = Batch(
        Pipeline(Rows(table)).collect(executor="inline").combine_chunks(), Origin.of("a.mp4", range(table.num_rows))
    )
    exchange = FolderExchange(folder)
    writer = SpillWriter(exchange, "part-000000.rows.spill")
    write_rows(writer, batch)
    write_rows(writer, batch.select(slice(0, 1)))
    writer.close()
    reading = Reading(None, table.schema, batch_bytes, lambda failure: None)
    found = list(SpilledRows(exchange=exchange).read(Partition(0, (), ""), reading))
    assert [row for part in found for row in part.rows()] == [*table.to_pylist(), table.to_pylist()[0]]
    assert [name for part in found for name in part.origin.addresses()] == [*batch.origin.addresses(), "a.mp4:0"]


@PROPERTY
@given(tables())
def test_json_lines_refer_to_the_same_bytes(folders, table):
    folder = folders()
    Pipeline(Rows(table.select(["id", "image"])), JsonlWriter(folder / "out")).run(executor="inline")
    (batch,) = _batches(folder / "out")
    images = table["image"].to_pylist()
    held = np.array([image is not None and image["bytes"] is not None for image in images])
    if held.any():
        found = read_bytes(batch.select(held), "image")
        assert found == [images[row]["bytes"] for row in np.flatnonzero(held)]


def _batches(folder):
    reader = JsonlReader(folder)
    layout = reader.layout(2**30)
    reading = Reading(None, layout.schema, 2**30, lambda failure: pytest.fail(failure.error))
    return [batch for partition in layout.partitions for batch in reader.read(partition, reading)]
