"""The history as a picture: Graphviz's dot and Mermaid, no dependency."""
