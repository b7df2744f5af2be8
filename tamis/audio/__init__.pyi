# Written by scripts/make_names.py.
from tamis.audio.alignment import SentenceSegments as SentenceSegments
from tamis.audio.alignment import TranscriptAlignment as TranscriptAlignment
from tamis.audio.edit import AudioConvert as AudioConvert
from tamis.audio.edit import AudioHeader as AudioHeader
from tamis.audio.edit import AudioInfo as AudioInfo
from tamis.audio.edit import AudioMono as AudioMono
from tamis.audio.edit import AudioNormalize as AudioNormalize
from tamis.audio.edit import AudioResample as AudioResample
from tamis.audio.edit import AudioTrim as AudioTrim
from tamis.audio.embed import AudioEmbed as AudioEmbed
from tamis.audio.filters import AudioBandwidth as AudioBandwidth
from tamis.audio.filters import AudioChannels as AudioChannels
from tamis.audio.filters import AudioClipping as AudioClipping
from tamis.audio.filters import AudioCodec as AudioCodec
from tamis.audio.filters import AudioDecodable as AudioDecodable
from tamis.audio.filters import AudioDuration as AudioDuration
from tamis.audio.filters import AudioLoudness as AudioLoudness
from tamis.audio.filters import AudioNoise as AudioNoise
from tamis.audio.filters import AudioSampleRate as AudioSampleRate
from tamis.audio.filters import AudioSilence as AudioSilence
from tamis.audio.fingerprint import AudioDigest as AudioDigest
from tamis.audio.fingerprint import AudioFingerprint as AudioFingerprint
from tamis.audio.listening import SoundKind as SoundKind
from tamis.audio.listening import SpeechQuality as SpeechQuality
from tamis.audio.manifests import LhotseManifest as LhotseManifest
from tamis.audio.manifests import LhotseText as LhotseText
from tamis.audio.manifests import NemoManifest as NemoManifest
from tamis.audio.rttm import RttmWriter as RttmWriter
from tamis.audio.segment import AudioSlice as AudioSlice
from tamis.audio.segment import AudioSplit as AudioSplit
from tamis.audio.segment import AudioWindows as AudioWindows
from tamis.audio.segment import TranscriptSegments as TranscriptSegments
from tamis.audio.speech import SpeechSegments as SpeechSegments
from tamis.audio.speech import SpeechShare as SpeechShare
from tamis.audio.transcribe import AudioSamples as AudioSamples
from tamis.audio.transcribe import Transcribe as Transcribe
from tamis.audio.transcripts import Hallucination as Hallucination
from tamis.audio.transcripts import SpeechRate as SpeechRate
from tamis.audio.transcripts import TranscriptLanguage as TranscriptLanguage
from tamis.audio.transcripts import WordErrorRate as WordErrorRate
from tamis.audio.voices import SpeakerCount as SpeakerCount
from tamis.audio.voices import SpeakerEmbed as SpeakerEmbed
from tamis.audio.voices import SpeakerSimilarity as SpeakerSimilarity
from tamis.audio.voices import SpeakerTurns as SpeakerTurns

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
    "AudioHeader",
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
