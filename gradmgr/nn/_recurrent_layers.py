"""LSTM and GRU over sequences, and their cells."""
