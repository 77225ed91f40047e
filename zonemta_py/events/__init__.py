"""Every fact about accepted mail: its schema, its segments on disk, its exporter."""
