import fsspec
import pytest

from tamis.errors import SinkError, TamisError
from tamis.store import Store


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    store = Store(str(tmp_path / "out") if request.param == "local" else f"memory://bucket-{tmp_path.name}/out")
    store.make()
    yield store
    fsspec.filesystem("memory").store.clear()


def test_what_is_written_can_be_read_listed_and_removed(store):
    store.write("a.txt", b"one")
    store.write(".tamis/b.txt", b"two")
    assert store.read("a.txt") == b"one"
    assert store.size(".tamis/b.txt") == 3
    assert "a.txt" in store.names()
    store.remove("a.txt")
    assert store.read("a.txt") is None
    assert store.size("a.txt") is None


def test_a_file_is_published_under_its_name(store):
    file = store.scratch() / "unfinished"
    file.write_bytes(b"rows")
    store.publish(file, "part-000000.jsonl")
    assert store.read("part-000000.jsonl") == b"rows"
    assert not file.exists()


def test_renaming(store):
    store.write("a", b"1")
    store.rename("a", "b")
    assert (store.read("a"), store.read("b")) == (None, b"1")


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b", "a\0b"])
def test_names_cannot_climb_out(store, name):
    with pytest.raises(TamisError, match="is outside the output folder"):
        store.write(name, b"")


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SinkError, match="cannot write to"):
        Store(str(tmp_path / "file" / "out")).make()


@pytest.mark.parametrize("name", ["", ".", "./"])
def test_the_folder_itself_is_never_removed(store, name):
    store.write("a.txt", b"one")
    for remove in (store.remove, store.remove_folder):
        with pytest.raises(TamisError, match="is the output folder itself"):
            remove(name)
    assert store.read("a.txt") == b"one"


def test_links_are_removed_and_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("precious")
    store = Store(str(tmp_path / "out"))
    store.make()
    (store.path / "folder").symlink_to(outside)
    (store.path / "file").symlink_to(outside / "mine.txt")
    for remove in (store.remove, store.remove_folder):
        with pytest.raises(SinkError, match="behind a link"):
            remove("folder/mine.txt")
    with pytest.raises(SinkError, match="behind a link"):
        store.rename("folder/mine.txt", "b")
    store.remove("file")
    store.remove("folder")
    assert store.names() == [".tamis"]
    assert (outside / "mine.txt").read_text() == "precious"


def test_removing_a_file_leaves_a_folder_of_that_name(store):
    store.write("part-000000.jsonl/mine.txt", b"one")
    store.remove("part-000000.jsonl")
    assert store.read("part-000000.jsonl/mine.txt") == b"one"
