"""Operators on sound. Names are imported on first use."""

from tamis.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
