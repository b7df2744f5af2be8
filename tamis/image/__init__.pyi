# Written by scripts/make_names.py.
from tamis.image.appearance import ImageBlank as ImageBlank
from tamis.image.appearance import ImageBlockiness as ImageBlockiness
from tamis.image.appearance import ImageBlur as ImageBlur
from tamis.image.appearance import ImageBrightness as ImageBrightness
from tamis.image.appearance import ImageColours as ImageColours
from tamis.image.appearance import ImageContrast as ImageContrast
from tamis.image.appearance import ImageEntropy as ImageEntropy
from tamis.image.appearance import ImageSaturation as ImageSaturation
from tamis.image.brisque import Brisque as Brisque
from tamis.image.classify import ImageClassifier as ImageClassifier
from tamis.image.classify import ImageTags as ImageTags
from tamis.image.classify import Watermark as Watermark
from tamis.image.edit import ImageConvert as ImageConvert
from tamis.image.edit import ImageCrop as ImageCrop
from tamis.image.edit import ImageDigest as ImageDigest
from tamis.image.edit import ImageFrames as ImageFrames
from tamis.image.edit import ImageResize as ImageResize
from tamis.image.embed import ImageEmbed as ImageEmbed
from tamis.image.faces import BlurFaces as BlurFaces
from tamis.image.faces import Faces as Faces
from tamis.image.filters import ImageAspect as ImageAspect
from tamis.image.filters import ImageBytes as ImageBytes
from tamis.image.filters import ImageDecodable as ImageDecodable
from tamis.image.filters import ImageFormat as ImageFormat
from tamis.image.filters import ImageFrameCount as ImageFrameCount
from tamis.image.filters import ImageMode as ImageMode
from tamis.image.filters import ImagePixels as ImagePixels
from tamis.image.filters import ImageSize as ImageSize
from tamis.image.filters import JpegQuality as JpegQuality
from tamis.image.hashing import ImageHash as ImageHash
from tamis.image.metadata import ImageExif as ImageExif
from tamis.image.metadata import ImageMetadataRemoval as ImageMetadataRemoval
from tamis.image.neural import ImageTensor as ImageTensor
from tamis.image.nsfw import BodyParts as BodyParts
from tamis.image.nsfw import Nsfw as Nsfw
from tamis.image.similarity import Aesthetics as Aesthetics
from tamis.image.similarity import ImageTextSimilarity as ImageTextSimilarity
from tamis.image.text_share import TextShare as TextShare

__all__ = [
    "Aesthetics",
    "BlurFaces",
    "BodyParts",
    "Brisque",
    "Faces",
    "ImageAspect",
    "ImageBlank",
    "ImageBlockiness",
    "ImageBlur",
    "ImageBrightness",
    "ImageBytes",
    "ImageClassifier",
    "ImageColours",
    "ImageContrast",
    "ImageConvert",
    "ImageCrop",
    "ImageDecodable",
    "ImageDigest",
    "ImageEmbed",
    "ImageEntropy",
    "ImageExif",
    "ImageFormat",
    "ImageFrameCount",
    "ImageFrames",
    "ImageHash",
    "ImageMetadataRemoval",
    "ImageMode",
    "ImagePixels",
    "ImageResize",
    "ImageSaturation",
    "ImageSize",
    "ImageTags",
    "ImageTensor",
    "ImageTextSimilarity",
    "JpegQuality",
    "Nsfw",
    "TextShare",
    "Watermark",
]
