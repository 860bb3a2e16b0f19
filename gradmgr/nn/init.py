"""First values of parameters, drawn from a Generator that the caller gives."""
