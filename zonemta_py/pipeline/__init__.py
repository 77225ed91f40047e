"""Jobs on Spark around bulk mail: prepare lists, submit them, analyse delivery records.

Only this package imports pyspark. From the relay it takes pure modules, the event schema and the SMTP
client, so that each rule of the mail world exists once.
"""
