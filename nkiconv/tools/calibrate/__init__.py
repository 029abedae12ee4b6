"""Constants of trn2.toml against measured ones."""
