"""What training and communication cost: phones, traces derived from them, and the ledger."""
