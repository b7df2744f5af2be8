"""Steps on real speech in fourteen languages, and what planted noise does to their scores.

    python benchmarks/audio_languages.py languages ROOT [--clips 30]
    python benchmarks/audio_languages.py noise ROOT [--clips 40]

ROOT is a folder into which these Debian packages were unpacked with `dpkg-deb -x`: asterisk-core-sounds-{en,es,fr,it,ru} and
the same with -wav, tuxpaint-stamps-default, fillets-ng-data, fillets-ng-data-cs, asterisk-moh-opsound-wav. Clips are chosen
at even distances; those of less than three words are left out. DNSMOS, which takes most of the time, rates every third one.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import gzip
import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa

from tamis.audio import (
    AudioBandwidth,
    AudioClipping,
    AudioLoudness,
    AudioNoise,
    AudioSilence,
    SpeechQuality,
    SpeechShare,
    Transcribe,
    TranscriptLanguage,
    WordErrorRate,
)
from tamis.audio.decode import RATE, waveforms
from tamis.audio.files import encoded
from tamis.audio.transcripts import error_rates
from tamis.batch import Batch
from tamis.context import Context
from tamis.executors.steps import apply_step
from tamis.operators import Filter


@dataclass(frozen=True)
class Clip:
    path: Path
    language: str
    text: str


def clips_in(root: Path) -> list[Clip]:
    """All clips with transcripts."""
    return sorted({*_asterisk(root), *_tuxpaint(root), *_fillets(root)}, key=lambda clip: str(clip.path))


def _asterisk(root: Path) -> list[Clip]:
    found = []
    for folder in (root / "usr/share/asterisk/sounds").iterdir():
        language = folder.name[:2]
        listing = root / f"usr/share/doc/asterisk-core-sounds-{language}/core-sounds-{language}.txt.gz"
        if not listing.is_file():
            continue
        for line in gzip.decompress(listing.read_bytes()).decode("utf-8", "replace").splitlines():
            name, colon, text = line.partition(":")
            path = folder / f"{name}.wav"
            if colon and not line.startswith(";") and re.search(r"\w", text) and "[" not in text and path.is_file():
                found.append(Clip(path, language, text.strip()))
    return found


def _tuxpaint(root: Path) -> list[Clip]:
    found = []
    for path in (root / "usr/share/tuxpaint/stamps").rglob("*_desc*.ogg"):
        stem, _, language = path.stem.rpartition("_desc")
        listing = path.with_name(f"{stem}.txt")
        if not listing.is_file():
            continue
        first, *others = listing.read_text("utf-8", "replace").splitlines()
        texts = {key.removesuffix(".utf8"): text for key, _, text in (line.partition("=") for line in others)}
        code = language.lstrip("_") or "en"
        text = first if code == "en" else texts.get(code, "")
        if text.strip():
            found.append(Clip(path, code, text.strip()))
    return found


def _fillets(root: Path) -> list[Clip]:
    found = []
    for listing in (root / "usr/share/games/fillets-ng/script").rglob("dialogs_cs.lua"):
        pairs = re.findall(
            r'dialogId\("([^"]+)".*?\)\s*dialogStr\("((?:[^"\\]|\\.)*)"\)', listing.read_text("utf-8"), re.DOTALL
        )
        folder = root / "usr/share/games/fillets-ng/sound" / listing.parent.name / "cs"
        for name, text in pairs:
            if (folder / f"{name}.ogg").is_file() and text.strip():
                found.append(Clip(folder / f"{name}.ogg", "cs", text))
    return found


def batch_of(files: list[bytes], **columns: list[str]) -> Batch:
    media = pa.array(
        [{"bytes": data, "path": "a"} for data in files], pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    )
    return Batch(pa.table({"audio": media, **{name: pa.array(values) for name, values in columns.items()}}))


def scores_of(step: Filter, batch: Batch) -> dict[str, np.ndarray]:
    found = step.open(Context()).score(batch)
    return {name: np.asarray(pa.array(values).to_pylist(), dtype=object) for name, values in found.items()}


def kept_by(step: Filter, batch: Batch) -> int:
    return len(apply_step(step, batch, runner=step.open(Context())).batch)


def spread(clips: list[Clip], most: int) -> list[Clip]:
    return clips[:: max(1, len(clips) // most)][:most]


def languages(root: Path, most: int) -> None:
    by: dict[str, list[Clip]] = defaultdict(list)
    for clip in clips_in(root):
        by[clip.language].append(clip)
    by = {name: found for name, found in sorted(by.items(), key=lambda each: -len(each[1])) if len(found) >= 5}
    print(f"{sum(map(len, by.values())):,} clips in {len(by)} languages\n")
    print(
        "| label | clips | text agrees | unsure | other | with speech | speech | SIG, BAK, OVRL | kept by the signal |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    heard: dict[str, tuple[Batch, dict[str, np.ndarray]]] = {}
    for name, found in by.items():
        texts = Batch(
            pa.table({"transcript": [each.text for each in found], "language": [each.language for each in found]})
        )
        agrees = scores_of(TranscriptLanguage(), texts)["language_agrees"].astype(float)
        few = spread([each for each in found if len(each.text.split()) >= 3], most)
        batch = batch_of([each.path.read_bytes() for each in few], text=[each.text for each in few])
        share = scores_of(SpeechShare(), batch)["speech_share"].astype(float)
        rated = scores_of(SpeechQuality(), batch.select(np.arange(0, len(batch), 3)))
        marks = ", ".join(f"{rated[f'dnsmos_{each}'].astype(float).mean():.2f}" for each in ("sig", "bak", "ovrl"))
        left, lost = batch, []
        for step in SIGNAL:
            before = len(left)
            left = apply_step(step, left, runner=step.open(Context())).batch
            lost += [f"{step.name} {before - len(left)}"] if before > len(left) else []
        kept = ": ".join([f"{len(left)} of {len(few)}", *([", ".join(lost)] if lost else [])])
        verdicts = " | ".join(f"{np.mean(agrees == value):.1%}" for value in (1, 0.5, 0))
        print(
            f"| {name} | {len(found)} | {verdicts} | "
            f"{np.sum(share >= 0.2)} of {len(few)} | {share.mean():.2f} | {marks} | {kept} |",
            flush=True,
        )
        heard[name] = batch, {}
    print("\nEnglish recognizers on all of them:\n")
    print("| label | model | WER | CER | mean confidence | label agrees | unsure | other | kept by WER 0.75 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in ("moonshine-tiny", "whisper-tiny.en"):
        recognizer = Transcribe(model).open(Context())
        for name, (batch, _) in heard.items():
            if model != "moonshine-tiny" and name not in ("en", "fr", "ru"):
                continue
            made = recognizer.apply(batch)
            rows = batch.with_columns({**made, "language": pa.array([name] * len(batch))})
            agrees = scores_of(TranscriptLanguage(), rows)["language_agrees"].astype(float)
            rates = error_rates(WordErrorRate().open(Context()).score(rows))
            sure = np.mean([value or 0.0 for value in made["transcript_confidence"].to_pylist()])
            print(
                f"| {name} | {model} | {rates['wer']:.3f} | {rates['cer']:.3f} | {sure:.2f} | {np.sum(agrees == 1)} | "
                f"{np.sum(agrees == 0.5)} | {np.sum(agrees == 0)} | {kept_by(WordErrorRate(), rows)} of {len(rows)} |",
                flush=True,
            )


SIGNAL = (
    AudioBandwidth(min_bandwidth=2500), AudioClipping(), AudioSilence(), AudioLoudness(), AudioNoise(),
)  # fmt: skip
"""The filters of the recipe `speech` that need no network."""


def noise(root: Path, most: int) -> None:
    """Clips with white noise, and with music, at several ratios of the power of speech to that of noise."""
    chosen = spread([clip for clip in clips_in(root) if len(clip.text.split()) >= 5], most)
    waves = [
        wave for wave in waveforms(batch_of([clip.path.read_bytes() for clip in chosen]), "audio") if wave is not None
    ]
    (tune, *_) = sorted((root / "usr/share/asterisk/moh").rglob("*.wav"))
    music = waveforms(batch_of([tune.read_bytes()]), "audio")[0]
    assert music is not None
    print(f"{len(waves)} clips, {sum(map(len, waves)) / RATE / 60:.1f} minutes\n")
    print(
        "| noise | ratio, dB | snr_db: 10 %, median, 90 % | kept by AudioNoise | BAK | OVRL | kept by SpeechQuality |"
    )
    print("|---|---|---|---|---|---|---|")
    for kind, ratio in [
        ("none", None),
        *((kind, ratio) for kind in ("white", "music") for ratio in (30, 20, 10, 5, 0)),
    ]:
        rng = np.random.default_rng(0)
        files = []
        for number, wave in enumerate(waves):
            added = np.zeros(len(wave), np.float32)
            if kind == "white":
                added = rng.standard_normal(len(wave)).astype(np.float32)
            elif kind == "music":
                added = np.resize(np.roll(music, -number * 3 * RATE), len(wave))
            if ratio is not None:
                loud = np.sqrt(np.mean(np.square(wave[np.abs(wave) > 0.01]))) if (np.abs(wave) > 0.01).any() else 0.1
                added = added * loud / (np.sqrt(np.mean(np.square(added))) + 1e-9) * 10 ** (-ratio / 20)
            made = wave + added
            files.append(encoded((made / max(1.0, float(np.abs(made).max())))[None], RATE, "flac"))
        batch = batch_of(files)
        snr = scores_of(AudioNoise(), batch)["snr_db"].astype(float)
        rated = scores_of(SpeechQuality(), batch.select(np.arange(0, len(batch), 3)))
        low, middle, high = np.percentile(snr, [10, 50, 90])
        kept = kept_by(AudioNoise(), batch)
        print(
            f"| {kind} | {'' if ratio is None else ratio} | {low:.0f}, {middle:.0f}, {high:.0f} | {kept} | "
            f"{rated['dnsmos_bak'].astype(float).mean():.2f} | {rated['dnsmos_ovrl'].astype(float).mean():.2f} | "
            f"{int((rated['dnsmos_ovrl'].astype(float) >= 2.5).sum())} of {len(rated['dnsmos_ovrl'])} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["languages", "noise"])
    parser.add_argument("root", type=Path)
    parser.add_argument("--clips", type=int)
    given = parser.parse_args()
    if given.what == "languages":
        languages(given.root, given.clips or 30)
    else:
        noise(given.root, given.clips or 40)


if __name__ == "__main__":
    main()
