"""The events about accepted mail: their schema, segments on disk, history of recipients, audit."""
