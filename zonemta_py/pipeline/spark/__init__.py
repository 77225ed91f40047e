"""Spark, as the jobs use it.

session    the session, its Java, its errors, SIGINT
files      files on any file system that Spark reaches
output     the rows of a job, its damage, its lock
arrow      tables of Arrow: xxhash64, blocks, single Parquet files
tables     the schemas of a plan; progress
"""
