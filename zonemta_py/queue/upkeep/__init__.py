"""Work on a queue in addition to its verbs: recovery, clean-up, checks, repair, operator's commands."""
