"""Networks on speech: word and diarization error rates on real clips, and speed against the loops of the packages that publish
the models.

    python benchmarks/audio_models.py wer WAVES TRANSCRIPTS [--clips 200]
    python benchmarks/audio_models.py speed WAVES PYTHON [--clips 40]
    python benchmarks/audio_models.py transcribe WAVES PYTHON [--clips 40] [--transcripts TRANSCRIPTS]
    python benchmarks/audio_models.py speakers MEETINGS

WAVES is the folder of wav files of the Debian package asterisk-core-sounds-en-wav, TRANSCRIPTS the file core-sounds-en.txt of
asterisk-core-sounds-en (unpacked). PYTHON is that of an environment with `pip install silero-vad speechmos
soundfile librosa useful-moonshine-onnx faster-whisper`. Times are CPU seconds, with models loaded; every loop decodes the
files, too. MEETINGS is a folder with wav files and the RTTM files that name them: that of the source distribution of
pyannote.audio (`pip download --no-deps --no-binary pyannote.audio pyannote.audio==4.0.7`), unpacked.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa

from tamis.audio import SpeakerTurns, SpeechQuality, SpeechShare, Transcribe, WordErrorRate
from tamis.audio.rttm import Turn, read_rttm
from tamis.audio.transcripts import error_rates
from tamis.batch import Batch
from tamis.context import Context
from tamis.models.recognizers import find_recognizer

PEER = """
import json, sys, time
import librosa, numpy as np, soundfile
what, *paths = sys.argv[1:]
def load(path):
    wave, rate = soundfile.read(path, dtype="float32")
    return librosa.resample(wave, orig_sr=rate, target_sr=16000, res_type="soxr_hq")
if what == "moonshine":
    import onnxruntime, tokenizers
    from moonshine_onnx import MoonshineOnnxModel
    folder = paths.pop(0)
    one = onnxruntime.SessionOptions()
    one.intra_op_num_threads = one.inter_op_num_threads = 1
    plain = onnxruntime.InferenceSession
    onnxruntime.InferenceSession = lambda path: plain(path, one)
    model = MoonshineOnnxModel(models_dir=folder, model_name="tiny", model_format="ort")
    words = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
    call = lambda wave: words.decode_batch(model.generate(wave[None]))[0].strip()
elif what == "whisper":
    from faster_whisper import WhisperModel
    model = WhisperModel(paths.pop(0), device="cpu", compute_type="int8", cpu_threads=1)
    plain = dict(beam_size=1, temperature=0, without_timestamps=True, condition_on_previous_text=False, language="en")
    call = lambda wave: " ".join(part.text.strip() for part in model.transcribe(wave, **plain)[0])
elif what == "vad":
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad
    torch.set_num_threads(1)
    model = load_silero_vad(onnx=True)
    call = lambda wave: sum(s["end"] - s["start"] for s in get_speech_timestamps(torch.from_numpy(wave), model)) / len(wave)
else:
    from speechmos import dnsmos
    call = lambda wave: float(dnsmos.run(np.clip(wave, -1, 1), sr=16000)["ovrl_mos"])
call(load(paths[0]))
start = time.process_time()
found = [call(load(path)) for path in paths]
print(json.dumps([time.process_time() - start, found]))
"""


def batch_of(paths: list[Path], **columns: Any) -> Batch:
    rows = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
    media = pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    return Batch(pa.table({"audio": media, **columns}))


def spoken(waves: Path, transcripts: Path) -> dict[Path, str]:
    """What is said in clips of at least three words."""
    found = {}
    for line in transcripts.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, text = line.partition(": ")
        path = waves / f"{name}.wav"
        if not line.startswith(";") and len(text.split()) >= 3 and "[" not in text and path.is_file():
            found[path] = text
    return found


def transcribed(waves: Path, transcripts: Path, most: int) -> list[tuple[Path, str]]:
    """Some of the clips with transcripts, from the whole list."""
    found = list(spoken(waves, transcripts).items())
    return found[:: max(1, len(found) // most)][:most]


def rates_of(found: list[str], said: list[str]) -> dict[str, float]:
    """Word and character error rates of a list of transcripts."""
    rows = Batch(pa.table({"transcript": pa.array(found), "text": pa.array(said)}))
    return error_rates(WordErrorRate().open(Context()).score(rows))


def hours_of(paths: list[Path]) -> float:
    return sum((path.stat().st_size - 44) / 2 / 8000 for path in paths) / 3600  # 16 bits, 8 kHz, one channel


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = call()
    return time.process_time() - start, found


def wer(waves: Path, transcripts: Path, most: int) -> None:
    chosen = transcribed(waves, transcripts, most)
    paths = [path for path, _ in chosen]
    print(f"{len(paths)} clips, {60 * hours_of(paths):.1f} minutes\n")
    print("| model | WER | CER | real-time factor |\n|---|---|---|---|")
    for model in ("moonshine-tiny", "whisper-tiny.en"):
        step = Transcribe(model).open(Context())
        step.apply(batch_of(paths[:1]))
        seconds, found = timed(lambda step=step: step.apply(batch_of(paths)))
        rates = rates_of(found["transcript"].to_pylist(), [text for _, text in chosen])
        factor = seconds / 3600 / hours_of(paths)
        print(f"| {model} | {rates['wer']:.3f} | {rates['cer']:.3f} | {factor:.3f} |", flush=True)


def speed(waves: Path, python: str, most: int) -> None:
    paths = sorted(waves.glob("*.wav"), key=lambda path: -path.stat().st_size)[:most]
    print(f"{len(paths)} clips, {60 * hours_of(paths):.1f} minutes\n")
    print("| | package, CPU s | Tamis, CPU s | ratio | largest difference |\n|---|---|---|---|---|")
    for what, step, column in (
        ("vad", SpeechShare(score_only=True), "speech_share"),
        ("dnsmos", SpeechQuality(score_only=True), "dnsmos_ovrl"),
    ):
        runner = step.open(Context())
        runner.score(batch_of(paths[:1]))
        ours, found = timed(lambda runner=runner: runner.score(batch_of(paths)))
        done = subprocess.run([python, "-c", PEER, what, *map(str, paths)], capture_output=True, text=True, check=True)
        theirs, expected = json.loads(done.stdout.splitlines()[-1])
        gap = max(abs(a - b) for a, b in zip(found[column].to_pylist(), expected, strict=True))
        print(f"| {what} | {theirs:.2f} | {ours:.2f} | {theirs / ours:.2f} | {gap:.4f} |", flush=True)


def transcribe(waves: Path, python: str, most: int, transcripts: Path | None) -> None:
    """The longest clips that are transcribed in one piece, in turns with the package; the fastest of three runs counts."""
    said = {} if transcripts is None else spoken(waves, transcripts)
    paths = [path for path in said or waves.glob("*.wav") if path.stat().st_size < 28 * 16_000]
    paths = sorted(paths, key=lambda path: (-path.stat().st_size, path.name))[:most]
    print(f"{len(paths)} clips, {60 * hours_of(paths):.1f} minutes\n")
    print("| | package, CPU s | Tamis, CPU s | ratio | equal transcripts | WER of the package | WER of Tamis |")
    print("|---|---|---|---|---|---|---|")
    for what, model in (("moonshine", "moonshine-tiny"), ("whisper", "whisper-tiny.en")):
        found = find_recognizer(model)
        step = Transcribe(model).open(Context())
        step.apply(batch_of(paths[:1]))
        best = [float("inf"), float("inf")]
        for _ in range(3):
            ours, made = timed(lambda step=step: step.apply(batch_of(paths)))
            command = [python, "-c", PEER, what, str(found.folder), *map(str, paths)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            theirs, expected = json.loads(done.stdout.splitlines()[-1])
            best = [min(best[0], theirs), min(best[1], ours)]
        texts = made["transcript"].to_pylist()
        equal = sum(a == b for a, b in zip(texts, expected, strict=True))
        rates = [
            f"{rates_of(each, [said[path] for path in paths])['wer']:.3f}" if said else "" for each in (expected, texts)
        ]
        row = [what, f"{best[0]:.2f}", f"{best[1]:.2f}", f"{best[0] / best[1]:.2f}", f"{equal} of {len(paths)}", *rates]
        print(f"| {' | '.join(row)} |", flush=True)
        for path, a, b in zip(paths, expected, texts, strict=True):
            if a != b:
                print(f"\n{path.name}\n  package: {a}\n  Tamis:   {b}", flush=True)


FRAMES = 100
"""Per second, in which turns are compared."""

COLLAR_S = 0.25
"""What the forgiving rate leaves out on both sides of the begin and end of each turn (NIST, Rich Transcription)."""


def speakers(folder: Path) -> None:
    """Diarization error rates: with everything, and without overlapping speech and what is near the bounds of turns."""
    known = read_rttm(folder)
    waves = {path.stem: path for path in sorted(folder.rglob("*.wav")) if path.stem in known}
    print(f"{len(waves)} recordings\n")
    print("| | missed | false alarms | confused | DER | DER without overlap and bounds | speakers found | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for name, step in (
        ("defaults", SpeakerTurns()),
        ("min_s=0", SpeakerTurns(min_s=0)),
        ("the turns of the RTTM files", SpeakerTurns(rttm=folder, min_s=0)),
    ):
        runner = step.open(Context())
        batch = batch_of(list(waves.values()))
        seconds, (made, parents) = timed(lambda runner=runner, batch=batch: runner.expand(batch))
        rows = made.select(["begin", "duration", "speaker"]).to_pylist()
        errors, forgiven, found = np.zeros(4), np.zeros(4), 0
        for number, recording in enumerate(waves):
            turns = [Turn("", **row) for row, parent in zip(rows, parents, strict=True) if parent == number]
            reference, heard = _table(known[recording]), _table(turns)
            errors += _errors(reference, heard)
            certain = (reference.sum(axis=0) < 2) & ~_near_bounds(known[recording])
            forgiven += _errors(reference[:, certain], heard[:, certain])
            found += len({turn.speaker for turn in turns})
        shares = [*(errors[:3] / errors[3]), errors[:3].sum() / errors[3], forgiven[:3].sum() / forgiven[3]]
        there = sum(len({turn.speaker for turn in known[each]}) for each in waves)
        print(
            f"| {name} | {' | '.join(f'{share:.3f}' for share in shares)} | {found} of {there} | {seconds:.1f} |",
            flush=True,
        )


def _table(turns: list[Turn], most_s: int = 60) -> np.ndarray:
    """Who speaks in which frame: bool[speakers, frames]."""
    names = sorted({turn.speaker for turn in turns}) or [""]
    table = np.zeros((len(names), most_s * FRAMES), bool)
    for turn in turns:
        table[names.index(turn.speaker), round(turn.begin * FRAMES) : round((turn.begin + turn.duration) * FRAMES)] = (
            True
        )
    return table


def _near_bounds(turns: list[Turn], most_s: int = 60) -> np.ndarray:
    near = np.zeros(most_s * FRAMES, bool)
    for turn in turns:
        for bound in (turn.begin, turn.begin + turn.duration):
            near[max(0, round((bound - COLLAR_S) * FRAMES)) : round((bound + COLLAR_S) * FRAMES)] = True
    return near


def _errors(reference: np.ndarray, heard: np.ndarray) -> np.ndarray:
    """Frames that are missed, false alarms, and of the wrong speaker, and those of all speakers that there are."""
    from scipy.optimize import linear_sum_assignment

    both = reference.astype(int) @ heard.T.astype(int)
    equal = both[linear_sum_assignment(-both)].sum()
    there, found = reference.sum(axis=0), heard.sum(axis=0)
    missed, extra = np.maximum(there - found, 0).sum(), np.maximum(found - there, 0).sum()
    return np.array([missed, extra, np.minimum(there, found).sum() - equal, there.sum()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["wer", "speed", "transcribe", "speakers"])
    parser.add_argument("waves", type=Path)
    parser.add_argument("other", nargs="?", default="")
    parser.add_argument("--clips", type=int)
    parser.add_argument("--transcripts", type=Path)
    given = parser.parse_args()
    if given.what == "speakers":
        speakers(given.waves)
    elif given.what == "wer":
        wer(given.waves, Path(given.other), given.clips or 200)
    elif given.what == "transcribe":
        transcribe(given.waves, given.other, given.clips or 40, given.transcripts)
    else:
        speed(given.waves, given.other, given.clips or 40)


if __name__ == "__main__":
    main()
