# Written by scripts/make_names.py.
from tamis.video.appearance import VectorMotion as VectorMotion
from tamis.video.appearance import VideoBars as VideoBars
from tamis.video.appearance import VideoBlack as VideoBlack
from tamis.video.appearance import VideoFlashing as VideoFlashing
from tamis.video.appearance import VideoFrozen as VideoFrozen
from tamis.video.appearance import VideoMotion as VideoMotion
from tamis.video.appearance import VideoShake as VideoShake
from tamis.video.caption import Caption as Caption
from tamis.video.cut import VideoCut as VideoCut
from tamis.video.embed import VideoEmbed as VideoEmbed
from tamis.video.embed import VideoTensor as VideoTensor
from tamis.video.filters import SoundTrack as SoundTrack
from tamis.video.filters import VideoBitRate as VideoBitRate
from tamis.video.filters import VideoCodec as VideoCodec
from tamis.video.filters import VideoDecodable as VideoDecodable
from tamis.video.filters import VideoDuration as VideoDuration
from tamis.video.filters import VideoProbe as VideoProbe
from tamis.video.filters import VideoRate as VideoRate
from tamis.video.filters import VideoSize as VideoSize
from tamis.video.filters import VideoSound as VideoSound
from tamis.video.frames import FrameColumns as FrameColumns
from tamis.video.frames import FrameFilter as FrameFilter
from tamis.video.hashing import VideoDigest as VideoDigest
from tamis.video.hashing import VideoHashes as VideoHashes
from tamis.video.previews import VideoPreview as VideoPreview
from tamis.video.split import FixedClips as FixedClips
from tamis.video.split import Shots as Shots
from tamis.video.split import TimedClips as TimedClips
from tamis.video.transnet import TransNetShots as TransNetShots

__all__ = [
    "Caption",
    "FixedClips",
    "FrameColumns",
    "FrameFilter",
    "Shots",
    "SoundTrack",
    "TimedClips",
    "TransNetShots",
    "VectorMotion",
    "VideoBars",
    "VideoBitRate",
    "VideoBlack",
    "VideoCodec",
    "VideoCut",
    "VideoDecodable",
    "VideoDigest",
    "VideoDuration",
    "VideoEmbed",
    "VideoFlashing",
    "VideoFrozen",
    "VideoHashes",
    "VideoMotion",
    "VideoPreview",
    "VideoProbe",
    "VideoRate",
    "VideoShake",
    "VideoSize",
    "VideoSound",
    "VideoTensor",
]
