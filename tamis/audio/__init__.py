"""Operators on sound. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tamis.curator_names import unknown_name

if TYPE_CHECKING:
    from tamis.audio.alignment import SentenceSegments, TranscriptAlignment
    from tamis.audio.edit import AudioConvert, AudioInfo, AudioMono, AudioNormalize, AudioResample, AudioTrim
    from tamis.audio.embed import AudioEmbed
    from tamis.audio.filters import (
        AudioBandwidth,
        AudioChannels,
        AudioClipping,
        AudioCodec,
        AudioDecodable,
        AudioDuration,
        AudioLoudness,
        AudioNoise,
        AudioSampleRate,
        AudioSilence,
    )
    from tamis.audio.fingerprint import AudioDigest, AudioFingerprint
    from tamis.audio.listening import SoundKind, SpeechQuality
    from tamis.audio.manifests import LhotseManifest, LhotseText, NemoManifest
    from tamis.audio.rttm import RttmWriter
    from tamis.audio.segment import AudioSlice, AudioSplit, AudioWindows, TranscriptSegments
    from tamis.audio.speech import SpeechSegments, SpeechShare
    from tamis.audio.transcribe import AudioSamples, Transcribe
    from tamis.audio.transcripts import Hallucination, SpeechRate, TranscriptLanguage, WordErrorRate
    from tamis.audio.voices import SpeakerCount, SpeakerEmbed, SpeakerSimilarity, SpeakerTurns

_MODULES = {
    "edit": ("AudioConvert", "AudioInfo", "AudioMono", "AudioNormalize", "AudioResample", "AudioTrim",),
    "filters": (
        "AudioBandwidth", "AudioChannels", "AudioClipping", "AudioCodec", "AudioDecodable", "AudioDuration",
        "AudioLoudness", "AudioNoise", "AudioSampleRate", "AudioSilence",
    ),
    "fingerprint": ("AudioDigest", "AudioFingerprint",),
    "manifests": ("LhotseManifest", "LhotseText", "NemoManifest",),
    "segment": ("AudioSlice", "AudioSplit", "AudioWindows", "TranscriptSegments",),
    "transcripts": ("Hallucination", "SpeechRate", "TranscriptLanguage", "WordErrorRate",),
    "speech": ("SpeechSegments", "SpeechShare",),
    "listening": ("SoundKind", "SpeechQuality",),
    "voices": ("SpeakerCount", "SpeakerEmbed", "SpeakerSimilarity", "SpeakerTurns",),
    "rttm": ("RttmWriter",),
    "transcribe": ("AudioSamples", "Transcribe",),
    "alignment": ("SentenceSegments", "TranscriptAlignment",),
    "embed": ("AudioEmbed",),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AudioBandwidth",
    "AudioChannels",
    "AudioClipping",
    "AudioCodec",
    "AudioConvert",
    "AudioDecodable",
    "AudioDigest",
    "AudioDuration",
    "AudioEmbed",
    "AudioFingerprint",
    "AudioInfo",
    "AudioLoudness",
    "AudioMono",
    "AudioNoise",
    "AudioNormalize",
    "AudioResample",
    "AudioSampleRate",
    "AudioSamples",
    "AudioSilence",
    "AudioSlice",
    "AudioSplit",
    "AudioTrim",
    "AudioWindows",
    "Hallucination",
    "LhotseManifest",
    "LhotseText",
    "NemoManifest",
    "RttmWriter",
    "SentenceSegments",
    "SoundKind",
    "SpeakerCount",
    "SpeakerEmbed",
    "SpeakerSimilarity",
    "SpeakerTurns",
    "SpeechQuality",
    "SpeechRate",
    "SpeechSegments",
    "SpeechShare",
    "Transcribe",
    "TranscriptAlignment",
    "TranscriptLanguage",
    "TranscriptSegments",
    "WordErrorRate",
]

if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise unknown_name("tamis.audio", name)
        return getattr(import_module(f"tamis.audio.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
