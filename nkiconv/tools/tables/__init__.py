"""The tables in README.md and docs/ that are generated: `make readme`."""
