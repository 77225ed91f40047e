"""Reports: delivery status notifications, QSBMF and digests, and a reader of the reports of other servers. Pure."""
