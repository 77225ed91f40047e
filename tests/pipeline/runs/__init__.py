"""Commands of the pipeline as processes: killed, on a cluster, over Spark Connect, and a whole campaign."""
