"""SGD, Adam, AdamW, RMSprop, Adagrad, Lion."""
