"""The commands of ``zonemta queue``."""
