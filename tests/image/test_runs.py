"""Networks on images in runs: the same rows for any workers, and for pixels that other workers prepare."""

import numpy as np
import pytest

from tamis import ParquetReader, ParquetWriter, Pipeline
from tamis.image import Faces, ImageEmbed, ImageTensor, Nsfw
from tamis.sources.memory import Rows
from tests.image.photographs import row
from tests.models.make_vision import write_small_graphs, write_vit


@pytest.fixture
def rows() -> Rows:
    broken = {"image": {"bytes": b"\xff\xd8\xff no image", "path": "broken.jpg"}}
    found = [row(name) for name in ("coffee.png", "astronaut.png", "rocket.jpg")] * 3
    return Rows([*found, {"image": None}, broken, *found])


@pytest.mark.slow
def test_rows_do_not_depend_on_workers(rows, tmp_path, monkeypatch):
    write_small_graphs(tmp_path / "files")
    monkeypatch.setenv("TAMIS_MODELS", str(tmp_path / "files"))
    write_vit(tmp_path / "vit")
    tables = []
    for name, options in (("inline", {"executor": "inline"}), ("local", {"workers": 2, "memory": "1.5GB"})):
        pipeline = Pipeline(
            rows,
            Nsfw(max_nsfw=0.9),
            Faces(max_faces=0),
            ImageEmbed(tmp_path / "vit"),
            ParquetWriter(str(tmp_path / name)),
        )
        report = pipeline.run(on_error="isolate", max_failed="100%", progress=False, **options)
        assert (report.kept, report.failed) == (12, 1)
        assert report.dropped == {"nsfw is missing": 1, "num_faces > 0": 6}
        tables.append(Pipeline(ParquetReader(str(tmp_path / name))).collect(executor="inline"))
    inline, local = tables
    assert inline.column_names == local.column_names
    assert inline["image"].to_pylist() == local["image"].to_pylist()
    vectors = [np.array(table["embedding"].to_pylist()) for table in tables]
    np.testing.assert_allclose(*vectors, atol=2e-5)


def test_a_step_and_its_parts_give_the_same_rows(rows, tmp_path):
    write_vit(tmp_path)
    step = ImageEmbed(tmp_path, device="cpu")
    parts = [ImageTensor(tmp_path, output="pixels"), step.changed(pixels="pixels")]
    options = {"executor": "inline", "on_error": "isolate", "max_failed": "100%"}
    one, two = (Pipeline(rows, *steps).collect(**options) for steps in ([step], parts))
    assert one.column_names == two.column_names == ["image", "embedding"]
    assert one["image"].to_pylist() == two["image"].to_pylist()
    assert one["embedding"].null_count == two["embedding"].null_count == 1
    vectors = [np.array(table["embedding"].combine_chunks().drop_null().to_pylist()) for table in (one, two)]
    np.testing.assert_allclose(*vectors, atol=2e-5)
