"""Words tokenized once: the same ids as the tokenizer gives for whole texts, for any text and any kind of tokenizer."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tamis.models import word_cache
from tamis.models.files import find
from tamis.models.word_cache import word_cache_of

WORDS = [
    *("the", "cat", "Sat", "don't", "1,234.5", "x-y", "[SEP]", "<mask>"),
    *("\u00e9t\u00e9", "na\u0308ive", "\u4e2d\u6587", "\u00a0", "\u00b4b", "a\u3000b", "\u0301"),
]
SPACES = [" ", "  ", "\n", "\t", " \r\n ", "\u00a0", "\u2028"]
TEXTS = [" ".join(random.Random(n).choices(WORDS[:6], k=40)) for n in range(50)]


def bert():
    return Tokenizer.from_file(str(find("minilm").folder / "tokenizer.json"))


def unigram(*, collapse=True, split=True):
    """As in SentencePiece models: spaces become a part of the word after them."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence(
        [
            normalizers.Nmt(),
            normalizers.NFKC(),
            *([normalizers.Replace(Regex(" {2,}"), " ")] if collapse else []),
            normalizers.Strip(),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(split=split)
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=["<unk>", "<mask>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


@pytest.fixture(scope="module")
def tokenizers_by_name():
    found = {"bert": bert(), "unigram": unigram()}
    for tokenizer in found.values():
        tokenizer.no_truncation()
        tokenizer.no_padding()
    return found


@pytest.fixture(scope="module")
def caches(tokenizers_by_name):
    return {name: word_cache_of(tokenizer) for name, tokenizer in tokenizers_by_name.items()}


def expected(tokenizer, texts):
    return [tokenizer.encode(text or "", add_special_tokens=False).ids for text in texts]


def found_by(cache, texts):
    ids, counts = cache.encode(pa.array(texts, pa.string()))
    ends = counts.cumsum()
    return [ids[end - count : end].tolist() for end, count in zip(ends, counts, strict=True)]


mixed = st.lists(st.tuples(st.sampled_from(WORDS) | st.text(max_size=8), st.sampled_from(SPACES)), max_size=12).map(
    lambda pairs: "".join(word + space for word, space in pairs)
)


@pytest.mark.parametrize("name", ["bert", "unigram"])
@settings(max_examples=150)
@given(texts=st.lists(mixed | st.none(), max_size=5))
def test_ids_are_those_of_whole_texts(tokenizers_by_name, caches, name, texts):
    assert found_by(caches[name], texts) == expected(tokenizers_by_name[name], texts)


def test_a_full_table_is_cleared(tokenizers_by_name, monkeypatch):
    monkeypatch.setattr(word_cache, "_SLOTS", 64)
    cache = word_cache_of(tokenizers_by_name["bert"])
    texts = [f"word{n} again{n % 7} {n}" for n in range(200)]
    for start in range(0, 200, 10):
        some = texts[start : start + 10]
        assert found_by(cache, some) == expected(tokenizers_by_name["bert"], some)
    assert found_by(cache, texts) == expected(tokenizers_by_name["bert"], texts)  # more words than the table has slots


def test_words_of_any_length(tokenizers_by_name, caches):
    texts = ["x" * 5000, "cat " + "y" * 300 + " sat", "中" * 500, "", " \n "]
    assert found_by(caches["bert"], texts) == expected(tokenizers_by_name["bert"], texts)


def test_known_words_are_not_tokenized_again(tokenizers_by_name, monkeypatch):
    cache = word_cache_of(tokenizers_by_name["bert"])
    cache.encode(pa.array(["the cat sat"]))
    asked = []
    whole = cache._whole
    monkeypatch.setattr(cache, "_whole", lambda texts: asked.extend(texts) or whole(texts))
    cache.encode(pa.array(["cat the sat the dog"]))
    assert asked == ["dog", "a dog a"]


def test_an_error_leaves_no_word_without_its_ids(tokenizers_by_name, monkeypatch):
    """As when memory runs out: the engine tries the rows again, in the same worker."""
    cache = word_cache_of(tokenizers_by_name["bert"])
    whole = cache._whole

    def fail(texts):
        raise MemoryError

    monkeypatch.setattr(cache, "_whole", fail)
    with pytest.raises(MemoryError):
        cache.encode(pa.array(["some unseen words"]))
    monkeypatch.setattr(cache, "_whole", whole)
    assert found_by(cache, ["some unseen words"]) == expected(tokenizers_by_name["bert"], ["some unseen words"])


def byte_level():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    return made


def replacing():
    made = bert()
    made.normalizer = normalizers.Replace(Regex("a b"), "c")
    return made


def added_with_space():
    made = bert()
    made.add_tokens(["new york"])
    return made


@pytest.mark.parametrize(
    "tokenizer",
    [byte_level, replacing, added_with_space, lambda: unigram(collapse=False), lambda: unigram(split=False)],
    ids=["byte level", "replaces across words", "added token with a space", "several spaces", "not split"],
)
def test_tokenizers_whose_words_may_depend_on_each_other_have_no_cache(tokenizer):
    assert word_cache_of(tokenizer()) is None
