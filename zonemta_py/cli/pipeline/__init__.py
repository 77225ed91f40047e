"""The commands of ``zonemta pipeline``."""
