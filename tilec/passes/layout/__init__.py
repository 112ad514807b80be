"""Layout rules per op and the edits that layout passes share."""
