"""What the tool itself costs, and how wrong it is. A package of its own: others on the path have the same name."""
