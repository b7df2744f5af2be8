"""Find and read model files, and train small models."""
