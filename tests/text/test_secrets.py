"""Secrets in code: what is found, what is not, and that masks leave the rest as it was."""

import itertools
import random
import string

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Batch, Pipeline, Rows
from tamis.errors import ParameterError
from tamis.text.secrets import SecretMask, Secrets, entropy, find_secrets, is_random

RANDOM = random.Random(7)


def letters(count, alphabet=string.ascii_letters + string.digits):
    return "".join(RANDOM.choice(alphabet) for _ in range(count))


# Made here, so that no file of this repository contains what other scanners would report.
KEYS = {
    "AWS": "AK" + "IA" + letters(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "GitHub": "gh" + "p_" + letters(36),
    "GitHub, fine": "github" + "_pat_" + letters(82),
    "GitLab": "gl" + "pat-" + letters(20),
    "Slack": "xo" + "xb-" + letters(12, string.digits) + "-" + letters(24),
    "Google": "AI" + "za" + letters(35),
    "Stripe": "sk" + "_live_" + letters(24),
    "SendGrid": "SG" + "." + letters(22) + "." + letters(43),
    "npm": "np" + "m_" + letters(36),
    "PyPI": "py" + "pi-AgEIcHlwaS5vcmc" + letters(60),
    "OpenAI": "s" + "k-" + letters(20) + "T3Blbk" + "FJ" + letters(20),
    "Hugging Face": "h" + "f_" + letters(34),
    "DigitalOcean": "do" + "p_v1_" + letters(64, "0123456789abcdef"),
    "Telegram": "123456789" + ":AA" + letters(33),
    "token": "ey" + "J" + letters(20) + ".ey" + "J" + letters(30) + "." + letters(40),
}
BODY = "\n".join(letters(64) for _ in range(5))
PRIVATE = f"-----BEGIN RSA {'PRIVATE'} KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize("service", KEYS)
@pytest.mark.parametrize("form", ["{}", "x = '{}'", 'curl -H "Authorization: Bearer {}" https://example.org', "({})\n"])
def test_keys_of_services_are_found_by_their_form(service, form):
    text = form.format(KEYS[service])
    assert [text[start:stop] for start, stop, kind in find_secrets(text) if kind == "key"] == [KEYS[service]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"a\n{PRIVATE}\nb", [PRIVATE]),
        (PRIVATE.replace("\n", "\\n"), [PRIVATE.replace("\n", "\\n")]),
        (PRIVATE.partition("\n-----END")[0], [PRIVATE.partition("\n-----END")[0]]),
        ("db: mongodb+srv://ann:x8Kq2vLp@cluster0.example.net/x", ["x8Kq2vLp"]),
        ("API_KEY = 'q8Zt1Lw0VbXe73Ks'", ["q8Zt1Lw0VbXe73Ks"]),
        ('"client_secret": "q8Zt1Lw0VbXe73Ks"', ["q8Zt1Lw0VbXe73Ks"]),
        ("config['auth_token'] = \"3f786850e387550fdab836ed7e6dc881\"", ["3f786850e387550fdab836ed7e6dc881"]),
        ("AWS_SECRET_ACCESS_KEY=wJa7rXUtnFEMI0K7MDENGabPxRfiCYzQ8KEYxy1\n", ["wJa7rXUtnFEMI0K7MDENGabPxRfiCYzQ8KEYxy1"]),
        ("password := `nothing`", []),
    ],
)  # fmt: skip
def test_other_secrets_are_found_in_their_place(text, found):
    assert [text[start:stop] for start, stop, _ in find_secrets(text)] == found


@pytest.mark.parametrize(
    "text",
    [
        "AKIA" + "IOSFODNN7EXAMPLE",
        "token = os.environ['API_TOKEN_OF_SERVICE']",
        "token = 'your_token_goes_here'",
        "LayoutLMv3TokenizerFast = LayoutLMv3Tokenizer",
        "tokenizer_fallback='minishlab/potion-base-8M'",
        'publicKeyToken="1fc8b3b9a1e18e3b"',
        '"NextContinuationToken": "1w41l63U0xa8q7smH50vCxyTQqdxo69O"',
        '"ClientRequestToken": "a8ca07e4-61ec-4399-99f4-19853801bcd5"',
        '"alias/aws/secretsmanager": "fee5173a-3972-428e-ae73-cd4c2a371222"',
        '"LocalConsolePassword": "PassWordMustBeAtLeast6Chars."',
        "secret_file = 'Ab3dEf7h_client9Zq.json'",
        'uri = f"s3://{access_key}:{secret_key}@host/bucket"',
        "https://jo%40email.com:a%20secret@example.org/",
        "api_key = '<insert your key here>'",
        "secret = 'xxxxxxxxxxxxxxxxxxxxxxxx'",
        "password = 'correct_horse_battery_staple'",
        "self.pad_token_id = config.t2u_pad_token_id",
        "postgres://user:password@localhost/db",
        "postgres://${USER}:${PASSWORD}@localhost/db",
        "token: 0000000000000000000000",
        "the key = value pairs of a token",
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        "task-0123456789abcdef0123456789",
        "commit = '3f786850e387550fdab836ed7e6dc881de23001b'",
        "key = 'q8Zt1Lw0VbXe73Ks'",
        "https://example.org:8080/path@2",
    ],
)
def test_what_is_no_secret(text):
    assert find_secrets(text) == []


def test_masks_replace_the_secret_only_and_once():
    text = f"a = '{KEYS['AWS']}'  # é\nurl = 'ftp://ann:x8Kq2vLp@h.org'\ntoken: \"q8Zt1Lw0VbXe73Ks\"\n{PRIVATE}\nend"
    batch = Batch.from_rows([{"text": text}, {"text": "nothing here"}, {"text": None}])
    made = SecretMask(counts=True).apply(batch)
    expected = "a = '[KEY]'  # é\nurl = 'ftp://ann:[PASSWORD]@h.org'\ntoken: \"[SECRET]\"\n[PRIVATE KEY]\nend"
    assert made["text"].to_pylist() == [expected, "nothing here", None]
    assert made["num_secrets"].tolist() == [4, 0, 0]
    again = SecretMask().apply(Batch.from_rows([{"text": expected}]))
    assert again["text"].to_pylist() == [expected]
    some = SecretMask(kinds=["key"], replacements={"key": "<KEY>"}).apply(batch)["text"][0].as_py()
    assert "<KEY>" in some
    assert "x8Kq2vLp" in some


def test_the_filter_counts_and_says_where():
    text = f"x = '{KEYS['GitHub']}'"
    report = Pipeline(Rows([{"text": text}, {"text": "x = 1"}]), Secrets()).run(executor="inline")
    assert report.dropped == {"secrets > 0": 1}
    assert Secrets().passages(text, "secrets") == [(5, 45)]


def test_mistakes_are_reported():
    with pytest.raises(ParameterError, match="empty"):
        Secrets(kinds=[]).check()
    with pytest.raises(ParameterError, match="unknown kind"):
        SecretMask(replacements={"email": "x"}).check()
    with pytest.raises(ParameterError, match="masked itself"):
        SecretMask(replacements={"setting": "q8Zt1Lw0VbXe73Ks"}).check()


@given(st.text(alphabet=st.characters() | st.sampled_from("=:'\"-@/_ \nkeyTOKENsecretBEGIN"), max_size=400))
def test_spans_are_ordered_and_the_candidates_of_re2_miss_none(text):
    found = find_secrets(text)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(found))
    table = pa.table({"text": [text.encode("utf-8", "ignore").decode()]})
    clean = table["text"][0].as_py()
    assert Secrets().score(Batch(table))["secrets"].tolist() == [len(find_secrets(clean))]


@pytest.mark.parametrize(
    "text",
    ["sk-" * 100_000, "token=" * 50_000, "a://" * 75_000, "-----BEGIN PRIVATE KEY-----" * 2000, "eyJ" + "a" * 300_000],
    ids=lambda text: text[:12],
)
def test_unusual_texts_take_no_unusual_time(text):
    find_secrets(text)  # the suite would not end if time were not almost linear


def test_entropy():
    assert entropy("abcd") == 2
    assert not is_random("aaaaaaaaaaaaaaaaaaaa1B")
