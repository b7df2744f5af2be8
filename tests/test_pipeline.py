"""The engine from end to end, on real files and real processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tamis import Batch, CsvWriter, JsonlReader, JsonlWriter, ParquetReader, ParquetWriter, Pipeline, Rows, Sequential
from tamis.audio import AudioDuration
from tamis.dedup import SemanticDedup
from tamis.errors import ColumnError, OperatorError, ParameterError, SinkError, TamisError, WorkerError
from tamis.events import MemoryAction, PartitionCommitted, RunFinished, RunStarted, WorkerDied
from tamis.fields import Copy, Rename
from tamis.image import ImageSize
from tamis.operators import Expand, Filter, Map, Resources, at_least, operator
from tamis.report import Report
from tamis.sampling import Sample
from tamis.text.quality import WordCount


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_jsonl(folder):
    return [json.loads(line) for file in sorted(folder.glob("part-*.jsonl")) for line in file.read_text().splitlines()]


def numbered(count):
    return [{"id": number, "text": "word " * (number % 7)} for number in range(count)]


@operator(reads="text", writes="length", resources=Resources(memory="2GB"))
class LargeForTests(Map):
    """Does not fit into two workers of a small budget."""

    def apply(self, batch):
        return {"length": [len(text) for text in batch["text"].to_pylist()]}


@operator(reads="text", writes="shout")
class ShoutForTests(Map):
    """Upper case."""

    def apply(self, batch):
        return {"shout": pa.compute.utf8_upper(batch["text"])}


@operator(reads="text")
class WordsForTests(Expand):
    """One row per word."""

    def expand(self, batch):
        words = [text.split() for text in batch["text"].to_pylist()]
        parents = np.repeat(np.arange(len(words)), [len(found) for found in words])
        return pa.table({"word": pa.array([word for found in words for word in found], pa.string())}), parents


@operator(reads="text", writes="length")
class BreaksOnForTests(Filter):
    """Raises on one text."""

    bad: str = "bad"

    def score(self, batch):
        if self.bad in batch["text"].to_pylist():
            raise ValueError(f"cannot score {self.bad}")
        return {"length": pa.compute.utf8_length(batch["text"])}

    def rules(self):
        return [at_least("length", 1)]


@operator(reads="text")
class TooManyForTests(Map):
    """Breaks its contract."""

    def apply(self, batch):
        return {"x": pa.array([1] * (len(batch) + 1))}


def test_a_filter_says_why_it_dropped():
    rows = [{"text": "too short"}, {"text": "just about long enough"}]
    report = Pipeline(Rows(rows), WordCount(min_words=3)).run()
    assert report.dropped == {"words < 3": 1}
    assert (report.read, report.kept, report.failed) == (2, 1, 0)
    assert report.balances


def test_files_in_files_out(tmp_path, executor):
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(20))
    write_jsonl(tmp_path / "in" / "b.jsonl", numbered(5))
    steps = [JsonlReader(tmp_path / "in", files_per_partition=1), WordCount(min_words=2), JsonlWriter(tmp_path / "out")]
    report = Pipeline(*steps).run(executor=executor)
    kept = [row for row in numbered(20) + numbered(5) if row["id"] % 7 >= 2]
    assert read_jsonl(tmp_path / "out") == kept
    assert report.as_dict() == Report.load(tmp_path / "out").as_dict()
    assert report.kept == len(kept)
    assert {"read", "kept", "dropped", "failed", "seconds", "peak_memory_bytes", "operators"} <= set(report.as_dict())
    assert report.peak_memory_bytes > 0 or executor == "inline"


def test_a_list_of_steps_and_sequential_are_the_same_pipeline():
    steps = [Rows(numbered(3)), WordCount(min_words=1)]
    assert Sequential(steps).run().kept == Pipeline(*steps).run().kept == 2


def test_the_manifest_records_the_recipe_and_the_reasons(tmp_path):
    Pipeline(Rows(numbered(3)), WordCount(min_words=1), JsonlWriter(tmp_path)).run(memory="1GB", workers=1)
    manifest = json.loads((tmp_path / ".tamis" / "manifest.json").read_text())
    assert manifest["recipe"]["steps"][1]["word_count"]["min_words"] == 1
    assert manifest["reasons"]["memory"] == "1.0 GB: requested"
    assert manifest["memory"]["workers"] == 1


class TestFunctions:
    def test_a_dict_adds_columns(self, executor):
        table = Pipeline(Rows(numbered(3)), lambda row: {"double": 2 * row["id"]}).collect(executor=executor)
        assert table.column("double").to_pylist() == [0, 2, 4]

    def test_a_bool_keeps_or_drops(self):
        def odd(row):
            return row["id"] % 2 == 1

        assert Pipeline(Rows(numbered(5)), odd).run().dropped == {"not odd": 3}

    def test_a_list_makes_rows(self):
        report = Pipeline(Rows(numbered(4)), lambda row: [{"copy": n} for n in range(row["id"])]).run()
        assert (report.read, report.created, report.kept) == (4, 3, 6)
        assert report.dropped == {"lambda: nothing left": 1}
        assert report.balances

    def test_a_batch_wise_function_gets_the_batch(self):
        def longest(batch: Batch) -> dict:
            return {"length": pa.compute.utf8_length(batch["text"])}

        assert Pipeline(Rows(numbered(3)), longest).collect().column("length").to_pylist() == [0, 5, 10]

    def test_types_survive_a_row_wise_function(self):
        table = pa.table({"small": pa.array([1, None], pa.int32()), "text": ["a", "b"]})
        result = Pipeline(Rows(table), lambda row: {"n": 1}).collect()
        assert result.schema.field("small").type == pa.int32()

    def test_none_is_an_error_not_a_drop(self):
        report = Pipeline(Rows(numbered(3)), lambda row: None).run()
        assert (report.kept, report.failed) == (0, 3)

    def test_a_script_without_a_main_guard_runs_once(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            textwrap.dedent("""
            from tamis import Pipeline, Rows
            print("started")
            LIMIT = 2
            def small(row):
                return row["n"] < LIMIT
            print(Pipeline(Rows([{"n": n} for n in range(5)]), small).run().kept)
            """)
        )
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["started", "2"]


class TestColumns:
    def test_an_unknown_column_is_an_error_before_data_is_processed(self, tmp_path):
        write_jsonl(tmp_path / "a.jsonl", [{"content": "x", "url": "u"}])
        with pytest.raises(ColumnError) as caught:
            Pipeline(JsonlReader(tmp_path / "a.jsonl"), WordCount(), JsonlWriter(tmp_path / "out")).run()
        assert "step 2 of 3, `word_count`, reads column `text`, which no earlier step provides" in str(caught.value)
        assert "columns here: content, url" in str(caught.value)
        assert 'hint: name it at the source: columns={"text": "content"}' in str(caught.value)
        assert not (tmp_path / "out").exists()

    def test_a_missing_column_is_not_suggested_to_be_a_column_of_another_kind(self, tmp_path):
        write_jsonl(tmp_path / "a.jsonl", [{"content": "x"}])
        with pytest.raises(ColumnError) as caught:
            Pipeline(JsonlReader(tmp_path / "a.jsonl"), SemanticDedup()).collect()
        hint = 'name it at the source: columns={"embedding": "..."}, or put a step that writes it before this one'
        assert caught.value.hint == hint

    def test_a_column_of_paths_is_suggested_to_become_a_media_column(self):
        with pytest.raises(ColumnError) as caught:
            Pipeline(Rows([{"file_name": "0.png", "caption": "x"}]), ImageSize()).collect()
        hint = 'if `file_name` has paths of files, put this before it: MediaReference(column="file_name", to="image")'
        assert caught.value.hint == hint

    @pytest.mark.parametrize(
        ("column", "step"), [("audio_filepath", "nemo_manifest"), ("recording", "lhotse_manifest")]
    )
    def test_a_manifest_is_suggested_to_become_recordings(self, column, step):
        with pytest.raises(ColumnError) as caught:
            Pipeline(Rows([{column: "a.wav"}]), AudioDuration()).collect()
        assert caught.value.hint == f"put `{step}` before this step: it makes `audio` from the columns of a manifest"

    def test_a_step_that_replaces_a_column_of_the_input_is_noted(self, tmp_path):
        rows = Rows([{"text": "one two", "length": "long", "words": 5, "x": 1}])
        steps = [Rename({"y": "x"}), WordCount(score_only=True), Copy("length", into="x"), Copy("text", into="length")]
        report = Pipeline(rows, *steps, JsonlWriter(tmp_path)).run(executor="inline")
        assert report.notes == [
            "step 3, `word_count`, replaces the column `words` of the input",
            "step 5, `copy`, replaces the column `length` of the input",
        ]
        assert read_jsonl(tmp_path) == [{"text": "one two", "length": "one two", "words": 2, "y": 1, "x": "long"}]

    def test_a_field_of_a_struct_is_suggested_to_be_copied(self):
        with pytest.raises(ColumnError) as caught:
            Pipeline(Rows([{"page": {"text": "x"}}]), WordCount(column="page.text")).collect()
        assert caught.value.hint == 'copy the field before this step: Copy("page", field="text", into="...")'

    @pytest.mark.parametrize("blocksize", ["200kB", "10MB"])
    def test_all_csv_files_have_a_column_that_first_appears_late(self, tmp_path, blocksize):
        rows = [{"text": "a, b" * 100, "n": n} | ({"late": n} if n == 5_000 else {}) for n in range(6_000)]
        write_jsonl(tmp_path / "a.jsonl", rows)
        Pipeline(JsonlReader(tmp_path / "a.jsonl", blocksize=blocksize), CsvWriter(tmp_path / "out")).run()
        files = [file.read_text().splitlines() for file in sorted((tmp_path / "out").glob("*.csv"))]
        assert len(files) == (1 if blocksize == "10MB" else 13)
        assert {lines[0] for lines in files} == {'"text","n","late"'}
        written = [line for lines in files for line in lines[1:]]
        assert written == [f'"{"a, b" * 100}",{n},{n if n == 5_000 else ""}' for n in range(6_000)]

    def test_columns_are_renamed_at_the_source_and_back_at_the_sink(self, tmp_path):
        write_jsonl(tmp_path / "in" / "a.jsonl", [{"content": "one two"}])
        Pipeline(
            JsonlReader(tmp_path / "in", columns={"text": "content"}),
            WordCount(min_words=2),
            JsonlWriter(tmp_path / "out", columns={"text": "content"}),
        ).run()
        assert read_jsonl(tmp_path / "out") == [{"content": "one two"}]

    def test_another_text_column_can_be_named(self):
        rows = [{"prompt": "one two", "text": "x"}]
        assert Pipeline(Rows(rows), WordCount(min_words=2, column="prompt")).run().kept == 1

    def test_only_what_is_needed_is_read(self, tmp_path):
        write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": 1, "text": "a b", "big": "x" * 1000}])
        plan = Pipeline(
            JsonlReader(tmp_path / "in"), WordCount(min_words=1), JsonlWriter(tmp_path / "out", fields=["id"])
        ).explain()
        assert plan.as_dict()["columns"] == ["id", "text"]

    def test_scores_become_columns_on_request(self):
        table = Pipeline(Rows([{"text": "a b"}, {"text": ""}]), WordCount(score_only=True)).collect()
        assert table.column("words").to_pylist() == [2, 0]


class TestExpand:
    def test_created_rows_are_counted_and_empty_ones_dropped(self):
        report = Pipeline(Rows([{"text": "a b c"}, {"text": ""}]), WordsForTests()).run()
        assert (report.read, report.created, report.kept) == (2, 2, 3)
        assert report.dropped == {"words_for_tests: nothing left": 1}
        assert report.balances
        assert "75.0 %" in str(report), "of the rows read and created"

    def test_other_columns_are_repeated(self):
        table = Pipeline(Rows([{"text": "a b", "id": 7}]), WordsForTests()).collect()
        assert table.select(["id", "word"]).to_pylist() == [{"id": 7, "word": "a"}, {"id": 7, "word": "b"}]


class TestFates:
    def test_only_the_row_that_raises_an_error_fails(self, tmp_path, executor):
        rows = [{"text": f"text {n}"} for n in range(100)]
        rows[37]["text"] = "bad"
        report = Pipeline(Rows(rows), BreaksOnForTests(), ShoutForTests(), JsonlWriter(tmp_path)).run(
            executor=executor, on_error="isolate"
        )
        assert (report.kept, report.failed) == (99, 1)
        (failed,) = [json.loads(line) for line in _failed(tmp_path)]
        assert failed["address"] == "rows:37"
        assert failed["step"] == "breaks_on_for_tests"
        assert failed["error"].startswith("ValueError: cannot score bad")
        assert failed["row"] == {"text": "bad"}

    def test_the_inline_executor_raises_the_error_itself(self):
        with pytest.raises(ValueError, match="cannot score bad"):
            Pipeline(Rows([{"text": "bad"}]), BreaksOnForTests()).run(executor="inline")

    def test_rejects_hold_every_dropped_row_with_its_reason(self, tmp_path, executor):
        Pipeline(Rows(numbered(14)), WordCount(min_words=2), Sample(rows=3), JsonlWriter(tmp_path)).run(
            executor=executor, rejects=True
        )
        rejected = pa.concat_tables(
            [pq.read_table(file) for file in sorted((tmp_path / ".tamis" / "rejects").iterdir())]
        ).to_pylist()
        assert sorted(row["_reason"] for row in rejected) == ["not in the sample"] * 7 + ["words < 2"] * 4
        assert {row["_scores"] for row in rejected if row["_step"] == "word_count"} == {'{"words": 0}', '{"words": 1}'}
        assert {row["_address"] for row in rejected if row["_step"] == "word_count"} == {
            "rows:0",
            "rows:1",
            "rows:7",
            "rows:8",
        }

    def test_an_operator_that_breaks_its_contract_stops_the_run(self, executor):
        with pytest.raises(OperatorError, match="returned 4 values of `x` for 3 rows"):
            Pipeline(Rows(numbered(3)), TooManyForTests()).run(executor=executor)

    def test_a_row_that_kills_workers_ends_in_failed(self, tmp_path):
        def kill_on_13(row):
            if row["id"] == 13:
                os.kill(os.getpid(), signal.SIGKILL)
            return True

        deaths = []
        report = Pipeline(Rows(numbered(40)), kill_on_13, JsonlWriter(tmp_path)).run(
            on_event=lambda event: deaths.append(event) if isinstance(event, WorkerDied) else None
        )
        assert (report.read, report.kept, report.failed) == (40, 39, 1)
        (failed,) = [json.loads(line) for line in _failed(tmp_path)]
        assert failed["row"]["id"] == 13
        assert "killed by signal 9 (SIGKILL) in `kill_on_13`" in failed["error"]
        assert [row["id"] for row in read_jsonl(tmp_path)] == [n for n in range(40) if n != 13]
        assert len(deaths) == 4  # twice the batch, twice the row
        assert report.memory["actions"] == {"restart": 4, "shrink": 1}  # once, before rows are processed one by one

    def test_a_worker_killed_once_is_replaced_and_no_row_fails(self, tmp_path):
        def kill_once(row):
            flag = tmp_path / "killed"
            if row["id"] == 5 and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return True

        report = Pipeline(Rows(numbered(20)), kill_once, JsonlWriter(tmp_path / "out")).run()
        assert (report.kept, report.failed) == (20, 0)
        assert report.memory["actions"] == {"restart": 1}

    def test_workers_that_die_before_any_row_end_the_run(self, tmp_path):
        class Deadly(Rows):
            def read(self, partition, reading):
                os.kill(os.getpid(), signal.SIGKILL)
                yield

        seen = []
        with pytest.raises(WorkerError, match="workers died 11 times"):
            Pipeline(Deadly(numbered(3)), JsonlWriter(tmp_path)).run(memory="2GB", workers=2, on_event=seen.append)
        kinds = [event.kind for event in seen if isinstance(event, MemoryAction)]
        assert list(dict.fromkeys(kinds)) == ["restart", "shrink", "fewer_workers", "isolate"]

    def test_a_crash_that_has_nothing_to_do_with_memory_leaves_batches_as_they_are(self, tmp_path):
        def crash_on_13(row):
            if row["id"] == 13:
                os.kill(os.getpid(), signal.SIGSEGV)
            return True

        report = Pipeline(Rows(numbered(40)), crash_on_13, JsonlWriter(tmp_path)).run()
        assert (report.kept, report.failed) == (39, 1)
        assert report.memory["actions"] == {"restart": 4}


def _failed(output):
    return [line for file in sorted((output / ".tamis" / "failed").iterdir()) for line in file.read_text().splitlines()]


class TestGather:
    @pytest.mark.parametrize("executor", ["inline", "local"])
    @pytest.mark.parametrize("before", [False, True])
    def test_a_sample_has_its_size_and_does_not_depend_on_partitions(self, executor, before):
        kept = set()
        for size in (7, 40, 1000):
            steps = [
                Rows(numbered(300), rows_per_partition=size),
                *([WordCount(min_words=2)] if before else []),
                Sample(rows=20),
            ]
            table = Pipeline(*steps, ShoutForTests()).collect(executor=executor)
            assert table.num_rows == 20
            kept.add(tuple(table.column("id").to_pylist()))
        assert len(kept) == 1

    def test_two_gathers_make_three_stages(self):
        pipeline = Pipeline(
            Rows(numbered(100), rows_per_partition=9), Sample(rows=50), WordCount(min_words=3), Sample(rows=5)
        )
        assert [stage["end"] for stage in pipeline.explain().as_dict()["stages"]] == ["sample", "sample", None]
        report = pipeline.run()
        assert report.kept == 5
        assert report.balances

    def test_rows_that_fail_before_the_decision_are_counted_once(self, tmp_path, executor):
        path = write_jsonl(tmp_path / "a.jsonl", numbered(50))
        path.write_text(path.read_text() + "{broken\n")

        class Picky(Sample):
            def observe(self, batch):
                if 13 in batch["id"].to_pylist():
                    raise ValueError("unlucky")
                return super().observe(batch)

            def reads(self):
                return ("id",)

        report = Pipeline(JsonlReader(path), Picky(rows=1000), JsonlWriter(tmp_path / "out")).run(
            executor=executor, on_error="isolate"
        )
        assert (report.read, report.kept, report.failed) == (51, 49, 2)
        assert 13 not in [row["id"] for row in read_jsonl(tmp_path / "out")]


class TestOutput:
    def test_a_folder_with_other_data_is_refused(self, tmp_path):
        (tmp_path / "precious.txt").write_text("mine")
        with pytest.raises(SinkError, match=r"is not empty and was not written by tamis \(precious.txt\)"):
            Pipeline(Rows(numbered(3)), JsonlWriter(tmp_path)).run()
        assert [path.name for path in tmp_path.iterdir() if path.name != ".tamis"] == ["precious.txt"]

    def test_overwriting_replaces_data_of_the_same_format_only(self, tmp_path):
        (tmp_path / "old.jsonl").write_text("{}\n")
        (tmp_path / "notes.txt").write_text("mine")
        Pipeline(Rows(numbered(3)), JsonlWriter(tmp_path, mode="overwrite")).run()
        assert sorted(path.name for path in tmp_path.iterdir()) == [".tamis", "notes.txt", "part-000000.jsonl"]

    def test_mode_error_refuses_an_earlier_output(self, tmp_path):
        Pipeline(Rows(numbered(3)), JsonlWriter(tmp_path)).run()
        with pytest.raises(SinkError, match="holds the output of an earlier run"):
            Pipeline(Rows(numbered(3)), JsonlWriter(tmp_path, mode="error")).run()

    def test_shards_agree_on_columns_and_types_in_the_end(self, tmp_path):
        write_jsonl(tmp_path / "in" / "a.jsonl", [{"n": 1, "seen": None}] * 3)
        write_jsonl(tmp_path / "in" / "b.jsonl", [{"n": 2}] * 3)
        late = write_jsonl(tmp_path / "in" / "c.jsonl", [{"n": 3}] * 200_000)
        with late.open("a") as file:
            file.write('{"n": 4.5, "seen": "yes", "new": {"a": [1]}}\n')
        Pipeline(JsonlReader(tmp_path / "in", files_per_partition=1), ParquetWriter(tmp_path / "out")).run()
        schemas = {str(pq.read_schema(file)) for file in (tmp_path / "out").glob("*.parquet")}
        assert len(schemas) == 1
        table = Pipeline(ParquetReader(tmp_path / "out")).collect()
        assert table.num_rows == 200_007
        assert table.slice(200_006).to_pylist() == [{"n": 4.5, "seen": "yes", "new": {"a": [1]}}]

    def test_target_shard_size_splits_a_partition(self, tmp_path):
        rows = [{"id": n, "text": f"{n} " * 50} for n in range(20_000)]
        Pipeline(Rows(rows), JsonlWriter(tmp_path, target_shard_size="500kB")).run()
        names = sorted(path.name for path in tmp_path.glob("part-*"))
        assert len(names) > 3
        assert names[0] == "part-000000-0000.jsonl"
        assert [row["id"] for row in read_jsonl(tmp_path)] == list(range(20_000))


class TestLines:
    """JSON lines that nothing changes are written as they were read."""

    LINES = (
        '{"id":1,"text":"one two", "n": 1.0, "meta": {"a": 1}}',
        '{"text": "caf\\u00e9 noir", "big": 123456789012345678901234567890, "meta": {"a": "x"}}',
        '{"id": "mixed types", "text": "three four"}',
        '{"text": "short"}',
    )

    @pytest.mark.parametrize("executor", ["inline", "local"])
    @pytest.mark.parametrize(
        "steps", [(), (WordCount(min_words=2),), (Sample(rows=2),), (WordCount(min_words=2), Sample(rows=9))]
    )
    def test_what_is_kept_is_kept_byte_for_byte(self, tmp_path, executor, steps):
        (tmp_path / "in.jsonl").write_bytes("\r\n".join(self.LINES).encode() + b"\n\n  \n{broken}\n")
        report = Pipeline(JsonlReader(tmp_path / "in.jsonl"), *steps, JsonlWriter(tmp_path / "out")).run(
            executor=executor
        )
        written = b"".join(file.read_bytes() for file in (tmp_path / "out").glob("part-*"))
        kept = [line.strip() for line in written.decode().splitlines()]
        assert set(kept) <= set(self.LINES)
        assert kept == sorted(kept, key=self.LINES.index)
        assert (report.kept, report.failed) == (len(kept), 1)

    def test_rejects_and_failures_hold_the_line(self, tmp_path):
        (tmp_path / "in.jsonl").write_text("\n".join(self.LINES))
        Pipeline(JsonlReader(tmp_path / "in.jsonl"), WordCount(min_words=2), JsonlWriter(tmp_path / "out")).run(
            rejects=True
        )
        (file,) = (tmp_path / "out" / ".tamis" / "rejects").iterdir()
        assert pq.read_table(file).column("_line").to_pylist() == ['{"text": "short"}']

    def test_compressed_lines_too(self, tmp_path):
        (tmp_path / "in.jsonl").write_text("\n".join(self.LINES) + "\n")
        Pipeline(JsonlReader(tmp_path / "in.jsonl"), JsonlWriter(tmp_path / "out", compression="gz")).run(
            executor="inline"
        )
        import gzip

        (file,) = (tmp_path / "out").glob("part-*")
        assert gzip.decompress(file.read_bytes()).decode().splitlines() == list(self.LINES)


class TestShape:
    @pytest.mark.parametrize(
        ("steps", "message"),
        [
            ([], "a pipeline needs at least a source"),
            ([WordCount()], "the first step must be a source"),
            ([Rows([]), Rows([])], "is a second source"),
            ([Rows([]), JsonlWriter("x"), WordCount()], "is a sink but not the last step"),
            ([Rows([]), 17], "17 is not a step"),
        ],
    )
    def test_steps_in_impossible_places_are_refused(self, steps, message):
        with pytest.raises(ParameterError, match=message):
            Pipeline(*steps).check()

    def test_a_source_without_rows_gives_an_empty_report(self, tmp_path):
        report = Pipeline(Rows([]), WordCount(), JsonlWriter(tmp_path / "out")).run()
        assert (report.read, report.kept) == (0, 0)

    def test_a_cheap_filter_after_an_expensive_one_gets_a_hint(self):
        @operator(reads="text", writes="expensive")
        class ExpensiveForTests(Filter):
            """Slow."""

            cost = 100.0

            def score(self, batch):
                return {"expensive": np.ones(len(batch))}

            def rules(self):
                return [at_least("expensive", 0)]

        hints = Pipeline(Rows(numbered(3)), ExpensiveForTests(), WordCount()).explain().as_dict()["hints"]
        assert hints == ["move `word_count`, which is cheap, before `expensive_for_tests`, to process fewer rows there"]

    @pytest.mark.parametrize(
        ("needs", "message"),
        [
            (Resources(cpus=10_000), "needs 10000 cores"),
            (Resources(gpus=1), "needs a GPU, and there is none here"),
            (Resources(memory="100TB"), "is not enough for this pipeline"),
        ],
    )
    def test_impossible_resources_are_refused(self, needs, message):
        class Demanding(Sample):
            declared_resources = needs

        with pytest.raises(TamisError, match=message):
            Pipeline(Rows(numbered(3)), Demanding(rows=1)).check()

    def test_unknown_executors_and_devices_are_refused(self):
        with pytest.raises(ParameterError, match="there is no executor 'spark'"):
            Pipeline(Rows([])).run(executor="spark")
        with pytest.raises(ParameterError, match="none of these steps can run on a GPU"):
            Pipeline(Rows([])).run(device="gpu")


def test_events_come_in_order():
    seen = []
    Pipeline(Rows(numbered(30), rows_per_partition=10)).run(on_event=seen.append)
    kinds = [type(event) for event in seen]
    assert kinds[0] is RunStarted
    assert kinds[-1] is RunFinished
    assert kinds.count(PartitionCommitted) == 3


def test_the_rate_of_a_resumed_run_counts_only_what_it_read(tmp_path):
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(50))
    steps = [JsonlReader(tmp_path / "in", files_per_partition=1), WordCount(min_words=1), JsonlWriter(tmp_path / "out")]
    first = Pipeline(*steps).run(executor="inline")
    assert (first.new_rows, first.new_bytes) == (50, first.num_bytes)
    write_jsonl(tmp_path / "in" / "b.jsonl", numbered(3))
    second = Pipeline(*steps).run(executor="inline")
    assert (second.read, second.new_rows) == (53, 3)
    assert second.new_bytes == second.num_bytes - first.num_bytes
    assert "/s for 3 rows read in this run)" in str(second)


def test_stages_count_from_one_in_an_explanation():
    plan = Pipeline(Rows(numbered(3)), Sample(rows=1)).explain()
    assert [line for line in str(plan).splitlines() if line.startswith("stage ")] == ["stage 1", "stage 2"]
    assert [stage["stage"] for stage in plan.as_dict()["stages"]] == [1, 2]


@pytest.mark.parametrize(
    ("steps", "partitions", "workers"),
    [
        ([WordCount()], 1, 1),
        ([WordCount()], 3, 2),
        ([Sample(rows=2)], 1, 2),  # a decision about all rows is divided among all workers
        ([ShoutForTests(), LargeForTests()], 1, 5),  # three stages at the same time, with 2, 1 and 2 workers
    ],
    ids=["one-partition", "partitions", "gather", "at-the-same-time"],
)
def test_an_explanation_and_the_run_name_the_same_workers(steps, partitions, workers):
    seen = []
    pipeline = Pipeline(Rows(numbered(3), rows_per_partition=-(-3 // partitions)), *steps)
    assert pipeline.explain(memory="4GB", workers=2).as_dict()["workers"] == workers
    pipeline.run(memory="4GB", workers=2, on_event=seen.append)
    assert next(event for event in seen if isinstance(event, RunStarted)).workers == workers


def test_alerts_and_the_actions_taken_are_in_the_report(tmp_path):
    steps = [Rows(numbered(3)), JsonlWriter(tmp_path)]
    alerts = {"budget_percent": [0.1, 0.2], "remedy": {"budget": "shrink"}}
    Pipeline(*steps).run(executor="inline", memory="2GB", alerts=alerts)
    events = Report.load(tmp_path).memory_events
    (alert,) = [event for event in events if event["kind"] == "budget"]
    assert (alert["level"], alert["action"]) == ("critical", "shrink")
    assert "budget of 2.0 GB" in alert["text"]
    assert alert["time"].startswith("20")
    assert [event["level"] for event in events if event["kind"] == "shrink"] == ["action"]
