"""Programs of captured calls: which a replay makes itself, in which order, and in what memory."""
