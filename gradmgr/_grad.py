"""`grad` and `backward` over the managers that record: the derivative without a manager in hand."""
