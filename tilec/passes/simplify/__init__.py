"""The patterns of canonicalize, by the kind of op they look at."""
