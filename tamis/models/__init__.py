"""Models: finding their files, reading them, training small ones."""
