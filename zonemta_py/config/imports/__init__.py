"""Files of other relays that say how mail is sent where, as providers and shaping rules of this one."""
