"""GSM8K: grade-school mathematics."""
