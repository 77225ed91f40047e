"""The event log: what of it is to be read, its events as rows, and the job that stores them as Parquet or a table.

log         which segments are there, which are damaged, and what of each is to be read
coverage    what has been read: ranges of SEQ; whole group commits of a torn frame
rows        events as rows of Spark or Arrow; provider, kind and class of an attempt
replies     replies to failures: class, kind, template, words
compact     ``zonemta pipeline compact``
"""
