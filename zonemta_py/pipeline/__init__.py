"""The data work around bulk mail, on Spark: lists prepared and submitted, delivery records understood.

Only this package imports pyspark; of the relay it takes pure modules, the event schema and what
``zonemta submit`` sends with, so that a rule stands in one place.
"""
