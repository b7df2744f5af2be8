"""Operators on sound."""
