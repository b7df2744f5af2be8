"""What `tamis stats` says about a corpus beside its texts, and the page that it writes."""

import json
import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis.cli import main
from tamis.errors import Interrupted, ParameterError, SourceError
from tamis.events import PartitionStarted
from tamis.looking.corpus import OTHERS, Counts, domains_of
from tamis.workflows import describe

TOKENIZER = Path(__file__).parent.parent / "text" / "data" / "tokenizer.json"
EVIL = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rows = [
        {"text": "one two three", "url": "https://www.a.example/1", "source": "web", "title": None},
        {"text": "one two three", "url": "http://A.example:80/2", "source": "web", "title": "a"},
        {"text": "four", "url": f"https://{EVIL}/", "source": EVIL, "title": None},
        {"text": "", "url": None, "source": "books", "title": "b"},
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "a.jsonl"


@pytest.fixture(scope="module")
def described(corpus):
    options = {"language": False, "tokenizer": str(TOKENIZER), "executor": "inline"}
    return describe(str(corpus), by="domain", **options), describe(str(corpus), by="source", **options)


def test_domains_nulls_and_tokens_are_counted(described):
    found = described[0]
    assert found.domains["a.example"] == 2
    assert found.nulls == {"text": 0, "url": 1, "source": 0, "title": 2}
    assert found.num_tokens == sum(group["tokens"] for group in found.groups.values()) > 0
    assert found.word_histogram == {0: 1, 1: 1, 2: 0, 4: 2}


def test_groups_by_domain_or_column_add_up(described):
    by_domain, by_source = described
    assert by_domain.groups["a.example"] | {"tokens": 0} == {
        "documents": 2,
        "bytes": 26,
        "chars": 26,
        "words": 6,
        "tokens": 0,
    }
    assert by_domain.groups["(none)"]["documents"] == 1
    assert [group["documents"] for group in by_source.groups.values()] == [2, 1, 1]
    for found in described:
        assert sum(group["words"] for group in found.groups.values()) == found.num_words == 7


def test_the_page_opens_offline_and_data_in_it_is_text(corpus, tmp_path, capsys):
    page = tmp_path / "corpus.html"
    arguments = ["stats", str(corpus), "--no-language", "--by", "source", "--html", str(page), "--quiet"]
    assert main(arguments) == 0
    text = page.read_text()
    assert "&lt;script&gt;alert" in text
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert 'http-equiv="Content-Security-Policy"' in text
    assert 'src="http' not in text
    for title in ("Lengths and shares", "Domains", "Missing values", "By source"):
        assert title in text
    assert capsys.readouterr().out == ""


def test_text_and_json_have_the_same_figures(corpus, capsys):
    assert main(["stats", str(corpus), "--no-language", "--by", "domain", "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "a.example" in text
    assert "\x1b" not in text
    assert main(["stats", str(corpus), "--no-language", "--by", "domain", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"]["a.example"]["documents"] == 2


def test_many_names_are_counted_in_bounded_memory():
    counts = Counts(most=10)
    for number in range(100):
        counts.add(pa.array([f"name {number}", "common"]))
    top = counts.top(5)
    assert top["common"] == 100
    assert sum(top.values()) == 200
    assert top[OTHERS] >= 90
    assert len(counts.counts) <= 21


def test_hosts_of_odd_urls():
    urls = [
        "ftp://user:pw@Host.example/x",
        "//no.scheme",
        "https://",
        "https://a.example?q",
        "https://[::1]/",
        None,
        "",
    ]
    assert domains_of(pa.array(urls)).to_pylist() == ["host.example", None, None, "a.example", None, None, None]


def test_ctrl_c_does_not_promise_to_resume(corpus):
    def interrupt(event):
        if isinstance(event, PartitionStarted):
            for _ in range(2):  # the second one abandons the partition
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped before all rows were read") as raised:
        describe(str(corpus), language=False, on_event=interrupt, workers=1)
    assert raised.value.hint == "the next run starts over"


@pytest.mark.parametrize(("value", "kind"), [(["a"], "list"), ({"a": 1}, "struct"), (b"\xff", "binary")])
def test_rows_are_not_grouped_by_lists_or_bytes(tmp_path, value, kind):
    pq.write_table(pa.table({"text": ["one"], "tags": [value]}), tmp_path / "a.parquet")
    with pytest.raises(ParameterError) as raised:
        describe(str(tmp_path / "a.parquet"), language=False, by="tags", executor="inline")
    assert raised.value.message.startswith(f"rows cannot be grouped by column `tags`, which holds {kind}")


def test_a_column_that_is_not_there_is_named(corpus):
    with pytest.raises(SourceError, match="no column `txt`") as raised:
        describe(str(corpus), column="txt")
    assert "did you mean `text`?" in raised.value.hint
