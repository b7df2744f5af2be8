"""Tests of Tamis; a package, so that no installed package of this name is imported instead."""
