"""From a list to a plan: who gets the message, in which envelopes, in which order.

job            ``zonemta pipeline plan``
request        what a plan is made from; its manifest
list, csv      lists of recipients, and the quotes of CSV files
suppression    lists of those that get no mail
rows           classifies the rows of a list
pack           packs recipients into envelopes; keys and turns
files          writes the tables of a plan
segment        ``zonemta pipeline segment``: segments by the last open or click
"""
