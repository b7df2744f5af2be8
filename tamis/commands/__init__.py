"""The commands of `tamis` that belong to no other package, and what all commands share."""
