"""Languages and scripts: what is kept, why not, and that the answers are those of the reference."""

import fasttext
import pyarrow as pa
import pytest

from tamis import Pipeline, Rows
from tamis.batch import Batch
from tamis.context import Context
from tamis.errors import ParameterError, TamisError
from tamis.models.fasttext import find_model
from tamis.text.language import Language, script_of
from tests.models.make_fasttext import Recipe

SENTENCES = {
    "en": "The committee will meet again on Thursday to discuss the new library.",
    "fr": "Le comité se réunira de nouveau jeudi pour parler de la bibliothèque.",
    "de": "Der Ausschuss trifft sich am Donnerstag wieder, um über die Bücherei zu sprechen.",
    "es": "El comité se reunirá otra vez el jueves para hablar de la biblioteca.",
    "ru": "Комитет снова соберётся в четверг, чтобы обсудить новую библиотеку.",
    "zh": "委员会将于星期四再次开会讨论新图书馆。",
    "ja": "委員会は木曜日に再び集まり、新しい図書館について話し合います。",
    "ko": "위원회는 목요일에 다시 모여 새 도서관에 대해 논의할 것입니다.",
    "ar": "ستجتمع اللجنة مرة أخرى يوم الخميس لمناقشة المكتبة الجديدة.",
    "el": "Συνεδριάζει ξανά την Πέμπτη το νέο συμβούλιο της βιβλιοθήκης.",
    "hi": "समिति नए पुस्तकालय पर चर्चा करने के लिए गुरुवार को फिर मिलेगी।",
    "th": "คณะกรรมการจะประชุมอีกครั้งในวันพฤหัสบดีเพื่อหารือเรื่องห้องสมุดใหม่",
}
ODD = ["", None, " \n\t ", "x", "7", "\U0001f600\U0001f600", "\x01\x02", "a\x00b", "\u200b", "http://example.org"]


def score(texts, **parameters):
    step = Language(**parameters).open(Context())
    found = step.score(Batch(pa.table({"text": pa.array(texts, pa.string())})))
    return [
        dict(zip(found, row, strict=True))
        for row in zip(*(values.to_pylist() for values in found.values()), strict=True)
    ]


def test_twelve_languages_are_known():
    assert [row["language"] for row in score(list(SENTENCES.values()))] == list(SENTENCES)


def test_scripts_come_with_them():
    scripts = [row["script"] for row in score(list(SENTENCES.values()))]
    assert scripts == ["Latn"] * 4 + ["Cyrl", "Hani", "Jpan", "Hang", "Arab", "Grek", "Deva", "Thai"]


def test_it_says_why_it_dropped():
    rows = [{"text": text} for text in [*SENTENCES.values(), "", None, "x"]]
    report = Pipeline(Rows(rows), Language(keep=["en", "fr"], scripts=["Latn"])).run(executor="inline")
    assert report.kept == 2
    assert report.dropped == {"language is missing": 2, "language not in en, fr": 10, "language_confidence < 0.65": 1}


def test_score_only_leaves_the_answers_on_the_rows():
    rows = [{"prompt": SENTENCES["de"]}]
    table = Pipeline(Rows(rows), Language(column="prompt", score_only=True)).collect(executor="inline")
    assert table.column("prompt_language").to_pylist() == ["de"]
    assert table.column("prompt_script").to_pylist() == ["Latn"]


def test_nothing_to_read_has_no_language():
    for row in score([None, "", " ", "\n", "\t\r\n\x0b\x0c", "\x00"]):
        assert row == {"language": None, "language_confidence": None, "script": None}


def test_odd_texts_have_defined_answers_alone_and_together():
    together = score(ODD)
    assert together == [score([text])[0] for text in ODD]
    assert all(row["language_confidence"] is None or 0 < row["language_confidence"] <= 1 for row in together)


def test_five_megabytes_in_one_row():
    assert score([SENTENCES["fr"] * 70_000])[0]["language"] == "fr"


def test_line_breaks_are_spaces():
    first, second = score([SENTENCES["en"].replace(" ", "\n"), SENTENCES["en"]])
    assert first == second


def test_max_chars_reads_the_beginning():
    mixed = SENTENCES["en"] + " " + SENTENCES["ru"] * 20
    assert [row["language"] for row in score([mixed], max_chars=len(SENTENCES["en"]))] == ["en"]
    assert [row["language"] for row in score([mixed])] == ["ru"]


def test_labels_and_confidences_are_those_of_the_library():
    model = fasttext.load_model(str(find_model("lid.176.ftz")))
    texts = [*SENTENCES.values(), *(text for text in ODD if text and text.strip())]
    for row, text in zip(score(texts), texts, strict=True):
        (label,), (confidence,) = model.predict(text)
        assert row["language"] == label.removeprefix("__label__")
        assert row["language_confidence"] == pytest.approx(min(confidence, 1), abs=1e-5)


def test_any_model_of_the_format_will_do(tmp_path):
    path = Recipe(["hola"], ["__label__spa_Latn", "__label__rus_Cyrl"], seed=4).write(tmp_path / "own.bin")
    assert score(["hola"], model=path)[0]["language"] in ("spa_Latn", "rus_Cyrl")


def test_a_code_without_a_script_matches_all_scripts(tmp_path):
    labels = ["__label__spa_Latn", "__label__spa_Cyrl", "__label__rus_Cyrl"]
    path = Recipe(["hola", "da"], labels, seed=4).write(tmp_path / "own.bin")
    rows = Rows([{"text": text} for text in ("hola", "da", "hola da", "x", "da da", None)])
    found = Pipeline(rows, Language(model=path, min_confidence=0, score_only=True)).collect()["language"].to_pylist()
    for keep in (["spa"], ["spa_Cyrl"], ["rus", "spa_Latn"]):
        report = Pipeline(rows, Language(model=path, keep=keep, min_confidence=0)).run(executor="inline")
        kept = [label for label in found if label and (label in keep or label[:3] in keep)]
        assert report.kept == len(kept)
        outside = {f"language not in {', '.join(keep)}": 5 - len(kept)} if len(kept) < 5 else {}
        assert report.dropped == {"language is missing": 1} | outside
    with pytest.raises(ParameterError, match="does not know a language 'deu'"):
        Language(model=path, keep=["deu"]).open(Context())


@pytest.mark.parametrize("code", ["eng", "EN", "En"])
def test_a_language_the_model_does_not_know_is_a_mistake(code):
    with pytest.raises(ParameterError, match=f"does not know a language '{code}'") as raised:
        Language(keep=[code]).open(Context())
    assert "did you mean `en`?" in str(raised.value)


def test_a_missing_model_is_reported_before_data_moves(monkeypatch, tmp_path):
    monkeypatch.setenv("TAMIS_MODELS", str(tmp_path))
    with pytest.raises(TamisError, match="copy glotlid"):
        Pipeline(Rows([{"text": "a"}]), Language(model="glotlid.bin")).check()


def test_building_one_opens_nothing(tmp_path):
    assert Language(model=tmp_path / "not there").name == "language"


def test_another_model_is_another_step_and_another_place_is_not(tmp_path):
    content = find_model("lid.176.ftz").read_bytes()
    one, two = tmp_path / "one.ftz", tmp_path / "two.ftz"
    one.write_bytes(content)
    two.write_bytes(content)
    assert Language(model=one).identity() == Language(model=two).identity() == Language().identity()
    two.write_bytes(content + b"\0")
    assert Language(model=one).identity() != Language(model=two).identity()


def test_thresholds_can_change_without_measuring_again():
    measured = Language().measuring_identity()
    assert Language(keep=["en"], min_confidence=0.1, scripts=["Latn"]).measuring_identity() == measured
    assert Language(max_chars=10).measuring_identity() != measured


def test_scripts_are_counted_by_letters():
    texts = ["ab вгд", "abc вг", "漢字かな", "漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字か", "1 + 2", "", None, "ÀÉ"]
    assert script_of(pa.array(texts)).to_pylist() == ["Cyrl", "Latn", "Jpan", "Hani", None, None, None, "Latn"]
