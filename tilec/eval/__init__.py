"""The numpy meaning of each op; docs/semantics.md in executable form."""
